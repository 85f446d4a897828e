// What HIP's headers of ROCm 7.0 expect of libc++ and it no longer has: they specialise this template.
#pragma once

namespace std {
template <class>
struct __numeric_type;
}  // namespace std
