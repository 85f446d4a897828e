// Handler of RoPE: the portable kernels of rope.hip for f32, f16 and bf16.
#include "rope.h"

#include <cstdint>
#include <string>

#include "portable.h"

namespace jax_aiter {

namespace {

void rotate(Stream stream, const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& positions,
            const Tensor& y, bool interleaved, bool inverse) {
  if (number_of(x) == nullptr || x.shape.size() != 3) refuse(x, "f32, f16 or bf16[tokens,heads,depth]");
  const std::int64_t tokens = x.shape[0], heads = x.shape[1], depth = x.shape[2];
  if (cos.dtype != ffi::DataType::F32 || cos.shape.size() != 2 || cos.shape[0] < 1 || cos.shape[1] < 1 ||
      2 * cos.shape[1] > depth) {
    refuse(cos, "f32[rows,pairs], rows > 0, pairs from 1 to " + std::to_string(depth / 2));
  }
  expect(sin, ffi::DataType::F32, cos.shape[0], cos.shape[1]);
  expect(positions, ffi::DataType::S32, tokens);
  expect(y, x.dtype, tokens, heads, depth);
  as_int("heads * depth", heads * depth);
  if (tokens == 0 || heads == 0) return;
  RopeArgs args{};
  args.x = x.data;
  args.cos = static_cast<const float*>(cos.data);
  args.sin = static_cast<const float*>(sin.data);
  args.positions = static_cast<const int*>(positions.data);
  args.y = y.data;
  args.sign = inverse ? -1.0f : 1.0f;
  args.heads = static_cast<unsigned>(heads);
  args.depth = static_cast<unsigned>(depth);
  args.half = static_cast<unsigned>(cos.shape[1]);
  args.rows = static_cast<unsigned>(as_int("the number of positions", cos.shape[0]));
  const bool aligned = are_aligned({x, cos, sin, y});
  const RopePlan plan = plan_rope(args.heads, args.depth, args.half, numbers_in_16_bytes(x), aligned);
  args.spread = spread(static_cast<unsigned long>(tokens), plan.items);
  const std::string kernel = std::string(interleaved ? "rope_interleaved_" : "rope_neox_") + number_of(x);
  launch_portable(stream, "rope", kernel + (plan.wide ? "_wide" : "_narrow"), args.spread, args);
}

ffi::Error rope(Stream stream, ffi::AnyBuffer x, ffi::AnyBuffer cos, ffi::AnyBuffer sin, ffi::AnyBuffer positions,
                ffi::Result<ffi::AnyBuffer> y, bool interleaved, bool inverse) {
  return guarded("jax_aiter_rope", rotate, stream, Tensor("x", x), Tensor("cos", cos), Tensor("sin", sin),
                 Tensor("positions", positions), Tensor("y", *y), interleaved, inverse);
}

}  // namespace
}  // namespace jax_aiter

JAX_AITER_HANDLER(JaxAiterRope, jax_aiter::rope,
                  (jax_aiter::bind<4, 1>().Attr<bool>("interleaved").Attr<bool>("inverse")));
