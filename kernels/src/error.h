// Exception of a handler; handler.h converts it into an ffi::Error.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace jax_aiter {

// XLA's status codes that handlers use; values as in XLA_FFI_Error_Code.
enum class Code {
  kInvalidArgument = 3,      // the caller's shapes, dtypes or attributes
  kNotFound = 5,             // a file, a kernel, a row of a table
  kFailedPrecondition = 9,   // this machine: its GPU, its HIP
  kUnimplemented = 12,       // nothing here does that, though one could
  kInternal = 13,            // HIP refused
  kUnavailable = 14,         // there is no HIP
  kDataLoss = 15,            // a file is damaged
};

class Error : public std::runtime_error {
 public:
  Error(Code code, std::string message) : std::runtime_error(std::move(message)), code_(code) {}
  Code code() const { return code_; }

 private:
  Code code_;
};

}  // namespace jax_aiter
