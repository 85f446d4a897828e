// Adapter between XLA's FFI and the handlers: converts Error to ffi::Error and describes buffers in messages.
#pragma once

#include <cstdint>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "error.h"
#include "hip.h"
#include "xla/ffi/api/ffi.h"

namespace jax_aiter {

namespace ffi = xla::ffi;

inline std::string dtype_name(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::DataType::F32: return "f32";
    case ffi::DataType::F16: return "f16";
    case ffi::DataType::BF16: return "bf16";
    case ffi::DataType::S8: return "s8";
    case ffi::DataType::U8: return "u8";
    case ffi::DataType::U32: return "u32";
    case ffi::DataType::S32: return "s32";
    case ffi::DataType::F8E4M3FN: return "f8e4m3fn";
    case ffi::DataType::F8E4M3FNUZ: return "f8e4m3fnuz";
    default: return "dtype " + std::to_string(static_cast<int>(dtype));
  }
}

// A buffer with its name, such as bf16[128,256], for messages.
struct Tensor {
  const char* name;
  ffi::DataType dtype;
  ffi::Span<const std::int64_t> shape;
  void* data;

  Tensor(const char* called, const ffi::AnyBuffer& buffer)
      : name(called), dtype(buffer.element_type()), shape(buffer.dimensions()), data(buffer.untyped_data()) {}

  std::string text() const {
    std::string dims;
    for (const std::int64_t size : shape) dims += (dims.empty() ? "" : ",") + std::to_string(size);
    return std::string(name) + " " + dtype_name(dtype) + "[" + dims + "]";
  }

  std::int64_t elements() const {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    return count;
  }
};

// Adds the description of an argument; only buffers have one.
template <typename Argument>
void describe(std::string& text, const Argument& argument) {
  if constexpr (requires { *argument; argument.has_value(); }) {
    if (argument) describe(text, *argument);
  } else if constexpr (requires { argument.text(); }) {
    text += (text.empty() ? "" : ", ") + argument.text();
  }
}

// Calls a handler's function with its arguments. It never throws and never ends the process: failures are errors whose
// message ends with the buffers of the call.
template <typename Work, typename... Arguments>
ffi::Error guarded(const char* target, Work&& work, const Arguments&... arguments) {
  const auto failed = [&](ffi::ErrorCode code, const char* what) {
    std::string buffers;
    (describe(buffers, arguments), ...);
    return ffi::Error(code, std::string(target) + ": " + what + " Called with " + buffers + ".");
  };
  try {
    std::forward<Work>(work)(arguments...);
    return ffi::Error::Success();
  } catch (const Error& error) {
    return failed(static_cast<ffi::ErrorCode>(error.code()), error.what());
  } catch (const std::exception& error) {
    return failed(ffi::ErrorCode::kInternal, error.what());
  }
}

// Throws Error with the buffer and the requirement.
[[noreturn]] inline void refuse(const Tensor& tensor, const std::string& instead) {
  throw Error(Code::kInvalidArgument, tensor.text() + " does not fit: it has to be " + instead + ".");
}

template <typename... Sizes>
void expect(const Tensor& tensor, ffi::DataType dtype, Sizes... sizes) {
  const std::int64_t wanted[] = {static_cast<std::int64_t>(sizes)...};
  bool same = tensor.dtype == dtype && tensor.shape.size() == sizeof...(sizes);
  std::string text;
  for (std::size_t i = 0; i < sizeof...(sizes); ++i) {
    same = same && tensor.shape[i] == wanted[i];
    text += (i ? "," : "") + std::to_string(wanted[i]);
  }
  if (!same) refuse(tensor, dtype_name(dtype) + "[" + text + "]");
}

// A number that fits a kernel's 32-bit argument; throws Error otherwise.
inline int as_int(std::string_view name, std::int64_t value) {
  if (value < 0 || value > std::numeric_limits<int>::max()) {
    throw Error(Code::kInvalidArgument,
                std::string(name) + " is " + std::to_string(value) + "; the kernels' numbers end at 2147483647.");
  }
  return static_cast<int>(value);
}

// The kernels of attention and RMSNorm read 16 bytes at a time.
inline void expect_aligned(const Tensor& tensor) {
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % 16 != 0) {
    throw Error(Code::kInvalidArgument, tensor.text() + " does not begin at a multiple of 16 bytes.");
  }
}

inline void expect_matrix(const Tensor& tensor, ffi::DataType dtype) {
  if (tensor.dtype != dtype || tensor.shape.size() != 2) refuse(tensor, "a matrix of " + dtype_name(dtype));
}

template <int kArgs, int kResults, typename Binding>
auto with_buffers(Binding&& binding) {
  if constexpr (kArgs > 0) {
    return with_buffers<kArgs - 1, kResults>(std::forward<Binding>(binding).template Arg<ffi::AnyBuffer>());
  } else if constexpr (kResults > 1) {
    return with_buffers<0, kResults - 1>(std::forward<Binding>(binding).template Ret<ffi::AnyBuffer>());
  } else {
    return std::forward<Binding>(binding).template Ret<ffi::AnyBuffer>();
  }
}

// Binding of every handler: the stream, the given numbers of arguments and results (at least one), then attributes.
template <int kArgs, int kResults>
auto bind() {
  return with_buffers<kArgs, kResults>(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<Stream>>());
}

}  // namespace jax_aiter

// Defines the exported symbol of a handler. It may be recorded into a command buffer: handlers only enqueue memsets and
// kernels whose arguments depend on shapes and pointers alone.
#define JAX_AITER_HANDLER(symbol, function, binding)                                                 \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* symbol(XLA_FFI_CallFrame* frame); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(symbol, function, binding, {xla::ffi::Traits::kCmdBufferCompatible})
