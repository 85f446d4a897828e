// FakeCk: a handler of attention with a Composable Kernel that has no kernels and writes down what it is asked. It is
// compiled with AITER's headers, so that the structures are those of the real library. Tests only; fields.inc is made by
// ck.py from the same headers: every field of every structure.
#include <sstream>

#ifdef FAKE_CK_BACKWARD
#include "fmha_bwd.hpp"
template <>
float fmha_bwd<2>(fmha_bwd_traits, fmha_bwd_args, const ck_tile::stream_config&);
#include "mha_bwd.cc"
#else
#include "mha_fwd.cc"
#endif

#define PUBLIC extern "C" __attribute__((visibility("default")))

namespace {

std::ostringstream said;
float answer = 0;

void put(const char* name, const void* value) { said << name << "=" << reinterpret_cast<std::uintptr_t>(value) << "\n"; }
void put(const char* name, const std::string& value) { said << name << "=" << value << "\n"; }
void put(const char* name, double value) { said << name << "=" << value << "\n"; }
template <typename Enum>
  requires std::is_enum_v<Enum>
void put(const char* name, Enum value) {
  put(name, static_cast<double>(value));
}
template <typename Seed>
void put(const char* name, const std::variant<Seed, std::pair<const void*, const void*>>& value) {
  const auto [seed, offset] = std::get<1>(value);  // in device memory
  put((std::string(name) + ".seed").c_str(), seed);
  put((std::string(name) + ".offset").c_str(), offset);
}

#include "fields.inc"

template <typename Traits, typename Args>
float write(const Traits& traits, const Args& args, const ck_tile::stream_config& config) {
  said.str("");
  said.precision(17);
  put("stream", static_cast<const void*>(config.stream_id_));
  put("timed", config.time_kernel_);
  put_fields(traits);
  put_fields(args);
  return answer;
}

}  // namespace

#ifdef FAKE_CK_BACKWARD
template <>
float fmha_bwd<2>(fmha_bwd_traits traits, fmha_bwd_args args, const ck_tile::stream_config& config) {
  return write(traits, args, config);
}
#else
float fmha_fwd(fmha_fwd_traits traits, fmha_fwd_args args, const ck_tile::stream_config& config) {
  return write(traits, args, config);
}
#endif

// Reads as text, and then nothing was said.
PUBLIC const char* jax_aiter_fake_ck_said() {
  static std::string text;
  text = said.str();
  said.str("");
  return text.c_str();
}
PUBLIC void jax_aiter_fake_ck_answer(float value) { answer = value; }
