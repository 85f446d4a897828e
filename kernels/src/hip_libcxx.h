// HIP's headers of ROCm 7.0 specialise this template, which newer versions of libc++ lack.
#pragma once

namespace std {
template <class>
struct __numeric_type;
}  // namespace std
