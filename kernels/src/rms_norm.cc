// Handlers of RMSNorm: the portable kernels of rms_norm.hip for f32, f16 and bf16.
#include "rms_norm.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "handler.h"
#include "module.h"
#include "objects.h"

namespace jax_aiter {

namespace {

// The suffix of kernels for a tensor's numbers; nullptr if there are none.
const char* number_of(const Tensor& tensor) {
  switch (tensor.dtype) {
    case ffi::DataType::F32: return "f32";
    case ffi::DataType::F16: return "f16";
    case ffi::DataType::BF16: return "bf16";
    default: return nullptr;
  }
}

unsigned numbers_in_16_bytes(const Tensor& tensor) { return tensor.dtype == ffi::DataType::F32 ? 4 : 8; }

bool are_aligned(std::initializer_list<Tensor> tensors) {
  bool aligned = true;
  for (const Tensor& tensor : tensors) aligned = aligned && reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
  return aligned;
}

// HIP launches fewer than 2^32 threads, so blocks process several rows.
constexpr std::int64_t kMostBlocks = 1 << 20;

// The kernel of a dtype and a plan for the rows of a tensor.
struct Chosen {
  std::string kernel;
  unsigned threads;
};

Chosen choose(const char* family, unsigned held, const Tensor& x, std::initializer_list<Tensor> others) {
  const char* suffix = number_of(x);
  if (suffix == nullptr || x.shape.size() != 2 || x.shape[1] < 1) refuse(x, "f32, f16 or bf16[rows,n], n > 0");
  const bool aligned = are_aligned({x}) && are_aligned(others);
  const auto n = static_cast<unsigned long>(x.shape[1]);
  const RmsNormPlan plan = plan_rms_norm(n, numbers_in_16_bytes(x), aligned, held);
  const char* form = plan.form == RmsNormForm::kHeld   ? "held"
                     : plan.form == RmsNormForm::kWide ? "wide"
                                                       : "narrow";
  return {std::string(family) + "_" + suffix + "_" + form, plan.threads};
}

template <typename Args>
void launch_chosen(Stream stream, const Chosen& chosen, unsigned blocks, const Args& args) {
  const Device& device = device_of(stream);
  const Kernel kernel = load_kernel(device, module_folder(device) + "/rms_norm.co", chosen.kernel, sizeof args);
  launch(kernel, {blocks, 1, 1}, chosen.threads, &args, sizeof args, stream);
}

using Optional = std::optional<Tensor>;

void forward(Stream stream, const Tensor& x, const Optional& residual, const Tensor& gamma, const Tensor& y,
             const Optional& sum, const Tensor& rstd, float epsilon) {
  const Chosen chosen = residual ? choose("rms_norm_with_add", kRmsNormHeld, x, {*residual, gamma, y, *sum})
                                 : choose("rms_norm", kRmsNormHeld, x, {gamma, y});
  const std::int64_t rows = x.shape[0], n = x.shape[1];
  if (residual) expect(*residual, x.dtype, rows, n);
  if (sum) expect(*sum, x.dtype, rows, n);
  expect(gamma, x.dtype, n);
  expect(y, x.dtype, rows, n);
  expect(rstd, ffi::DataType::F32, rows);
  if (!(epsilon >= 0)) throw Error(Code::kInvalidArgument, "epsilon is " + std::to_string(epsilon) + ", not 0 or more.");
  if (rows == 0) return;
  RmsNormArgs args{};
  args.x = x.data;
  args.residual = residual ? residual->data : nullptr;
  args.gamma = gamma.data;
  args.y = y.data;
  args.sum = sum ? sum->data : nullptr;
  args.rstd = static_cast<float*>(rstd.data);
  args.rows = static_cast<unsigned long>(rows);
  args.n = static_cast<unsigned long>(n);
  args.epsilon = epsilon;
  args.threads = chosen.threads;
  args.blocks = static_cast<unsigned>(std::min(rows, kMostBlocks));
  launch_chosen(stream, chosen, args.blocks, args);
}

ffi::Error rms_norm(Stream stream, ffi::AnyBuffer x, ffi::AnyBuffer gamma, ffi::Result<ffi::AnyBuffer> y,
                    ffi::Result<ffi::AnyBuffer> rstd, float epsilon) {
  return guarded("jax_aiter_rms_norm", forward, stream, Tensor("x", x), Optional(), Tensor("gamma", gamma),
                 Tensor("y", *y), Optional(), Tensor("rstd", *rstd), epsilon);
}

ffi::Error rms_norm_with_add(Stream stream, ffi::AnyBuffer x, ffi::AnyBuffer residual, ffi::AnyBuffer gamma,
                             ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::AnyBuffer> sum,
                             ffi::Result<ffi::AnyBuffer> rstd, float epsilon) {
  return guarded("jax_aiter_rms_norm_with_add", forward, stream, Tensor("x", x), Optional({"residual", residual}),
                 Tensor("gamma", gamma), Tensor("y", *y), Optional({"sum", *sum}), Tensor("rstd", *rstd), epsilon);
}

void backward(Stream stream, const Tensor& dy, const Tensor& x, const Tensor& gamma, const Tensor& rstd,
              const Tensor& dx, const Tensor& partial) {
  const Chosen chosen = choose("rms_norm_bwd", kRmsNormBwdHeld, x, {dy, gamma, dx, partial});
  const std::int64_t rows = x.shape[0], n = x.shape[1];
  expect(dy, x.dtype, rows, n);
  expect(gamma, x.dtype, n);
  expect(rstd, ffi::DataType::F32, rows);
  expect(dx, x.dtype, rows, n);
  if (partial.dtype != ffi::DataType::F32 || partial.shape.size() != 2 || partial.shape[1] != n ||
      partial.shape[0] < 1 || partial.shape[0] > kMostBlocks) {
    refuse(partial, "f32[P," + std::to_string(n) + "], P from 1 to " + std::to_string(kMostBlocks));
  }
  RmsNormBwdArgs args{};
  args.dy = dy.data;
  args.x = x.data;
  args.gamma = gamma.data;
  args.rstd = static_cast<const float*>(rstd.data);
  args.dx = dx.data;
  args.dgamma_partial = static_cast<float*>(partial.data);
  args.rows = static_cast<unsigned long>(rows);
  args.n = static_cast<unsigned long>(n);
  args.threads = chosen.threads;
  args.partials = static_cast<unsigned>(partial.shape[0]);
  launch_chosen(stream, chosen, args.partials, args);
}

ffi::Error rms_norm_bwd(Stream stream, ffi::AnyBuffer dy, ffi::AnyBuffer x, ffi::AnyBuffer gamma, ffi::AnyBuffer rstd,
                        ffi::Result<ffi::AnyBuffer> dx, ffi::Result<ffi::AnyBuffer> partial) {
  return guarded("jax_aiter_rms_norm_bwd", backward, stream, Tensor("dy", dy), Tensor("x", x), Tensor("gamma", gamma),
                 Tensor("rstd", rstd), Tensor("dx", *dx), Tensor("dgamma_partial", *partial));
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterRmsNorm, jax_aiter::rms_norm, (jax_aiter::bind<2, 2>().Attr<float>("epsilon")));

JAX_AITER_HANDLER(JaxAiterRmsNormWithAdd, jax_aiter::rms_norm_with_add,
                  (jax_aiter::bind<3, 3>().Attr<float>("epsilon")));

JAX_AITER_HANDLER(JaxAiterRmsNormBwd, jax_aiter::rms_norm_bwd, (jax_aiter::bind<4, 2>()));
