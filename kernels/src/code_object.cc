#include "code_object.h"

#include <elf.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>

#include "error.h"

namespace jax_aiter {
namespace {

constexpr unsigned kMachineAmdGpu = 224;    // EM_AMDGPU
constexpr unsigned kMachMask = 0xff;        // EF_AMDGPU_MACH
constexpr unsigned kMetadataNote = 32;      // NT_AMDGPU_METADATA
constexpr int kDeepest = 32;                // nesting of metadata that is believed

struct Damaged {
  const char* what;
};

using Bytes = std::span<const unsigned char>;

Bytes slice(Bytes bytes, std::uint64_t at, std::uint64_t size) {
  if (at > bytes.size() || size > bytes.size() - at) throw Damaged{"it ends too early"};
  return bytes.subspan(at, size);
}

template <typename T>
T read(Bytes bytes, std::uint64_t at) {
  T value;
  std::memcpy(&value, slice(bytes, at, sizeof value).data(), sizeof value);
  return value;
}

// The subset of MessagePack in the metadata: maps, arrays, strings, integers, booleans, nil.
class MessagePack {
 public:
  explicit MessagePack(Bytes bytes) : rest_(bytes) {}

  // The number of pairs, if the next value is a map.
  std::optional<std::uint64_t> map() { return header(0x80, 0xf0, 0x0f, 0xde, 2); }
  std::optional<std::uint64_t> array() { return header(0x90, 0xf0, 0x0f, 0xdc, 2); }

  std::optional<std::string_view> text() {
    std::optional<std::uint64_t> size = header(0xa0, 0xe0, 0x1f, 0xd9, 3);
    if (!size) return std::nullopt;
    const Bytes text = take(*size);
    return std::string_view(reinterpret_cast<const char*>(text.data()), text.size());
  }

  std::optional<std::uint64_t> number() {
    const unsigned first = peek();
    if (first <= 0x7f) return take(1)[0];
    if (first < 0xcc || first > 0xcf) return std::nullopt;
    take(1);
    return big_endian(1u << (first - 0xcc));
  }

  void skip(int depth = 0) {
    if (depth > kDeepest) throw Damaged{"its metadata nests too deep"};
    if (const auto pairs = map()) {
      for (std::uint64_t i = 0; i < *pairs * 2; ++i) skip(depth + 1);
    } else if (const auto items = array()) {
      for (std::uint64_t i = 0; i < *items; ++i) skip(depth + 1);
    } else if (!text() && !number()) {
      const unsigned first = take(1)[0];
      const bool plain = first >= 0xe0 || first == 0xc0 || first == 0xc2 || first == 0xc3;
      const bool integer = first >= 0xd0 && first <= 0xd3;
      if (!plain && !integer) throw Damaged{"its metadata has a type that is not known"};
      if (integer) take(1u << (first - 0xd0));
    }
  }

 private:
  unsigned peek() const {
    if (rest_.empty()) throw Damaged{"its metadata ends too early"};
    return rest_[0];
  }

  Bytes take(std::uint64_t size) {
    if (size > rest_.size()) throw Damaged{"its metadata ends too early"};
    const Bytes taken = rest_.subspan(0, size);
    rest_ = rest_.subspan(size);
    return taken;
  }

  std::uint64_t big_endian(unsigned size) {
    std::uint64_t value = 0;
    for (const unsigned char byte : take(size)) value = value << 8 | byte;
    return value;
  }

  // A length: in the low bits of the first byte, or in the next bytes: 1, 2 or 4 if `wide` is 3, else 2 or 4.
  std::optional<std::uint64_t> header(unsigned tag, unsigned mask, unsigned low, unsigned first_wide, unsigned wide) {
    const unsigned first = peek();
    if ((first & mask) == tag) return take(1)[0] & low;
    if (first < first_wide || first >= first_wide + wide) return std::nullopt;
    take(1);
    return big_endian((wide == 3 ? 1u : 2u) << (first - first_wide));
  }

  Bytes rest_;
};

void read_kernel(MessagePack& data, CodeObject& into) {
  std::optional<std::string_view> name;
  std::optional<std::uint64_t> bytes;
  const auto pairs = data.map();
  if (!pairs) throw Damaged{"its metadata has a kernel that is no map"};
  for (std::uint64_t i = 0; i < *pairs; ++i) {
    const auto key = data.text();
    if (key == ".name") {
      name = data.text();
    } else if (key == ".kernarg_segment_size") {
      bytes = data.number();
    } else {
      data.skip();
    }
  }
  if (!name || !bytes) throw Damaged{"its metadata has a kernel without name or argument size"};
  into.kernarg_bytes.emplace(*name, *bytes);
}

void read_metadata(Bytes note, CodeObject& into) {
  MessagePack data(note);
  const auto pairs = data.map();
  if (!pairs) throw Damaged{"its metadata is no map"};
  for (std::uint64_t i = 0; i < *pairs; ++i) {
    if (data.text() != "amdhsa.kernels") {
      data.skip();
      continue;
    }
    const auto kernels = data.array();
    if (!kernels) throw Damaged{"its metadata lists no kernels"};
    for (std::uint64_t k = 0; k < *kernels; ++k) read_kernel(data, into);
  }
}

void read_notes(Bytes notes, CodeObject& into) {
  const auto padded = [](std::uint64_t size) { return (size + 3) / 4 * 4; };
  for (std::uint64_t at = 0; at + sizeof(Elf64_Nhdr) <= notes.size();) {
    const auto header = read<Elf64_Nhdr>(notes, at);
    const std::uint64_t name = at + sizeof header, body = name + padded(header.n_namesz);
    if (header.n_type == kMetadataNote) read_metadata(slice(notes, body, header.n_descsz), into);
    at = body + padded(header.n_descsz);
  }
}

CodeObject read_elf(Bytes bytes) {
  const auto header = read<Elf64_Ehdr>(bytes, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) throw Damaged{"it is no ELF file"};
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kMachineAmdGpu) {
    throw Damaged{"it is an ELF file, but not for an AMD GPU"};
  }
  // A truncated file loses its section headers first; HIP's error would be less specific.
  slice(bytes, header.e_shoff, std::uint64_t{header.e_shnum} * header.e_shentsize);
  CodeObject found{header.e_flags & kMachMask, {}};
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    const auto segment = read<Elf64_Phdr>(bytes, header.e_phoff + std::uint64_t{i} * header.e_phentsize);
    const Bytes content = slice(bytes, segment.p_offset, segment.p_filesz);
    if (segment.p_type == PT_NOTE) read_notes(content, found);
  }
  if (found.kernarg_bytes.empty()) throw Damaged{"it has no kernels"};
  return found;
}

}  // namespace

CodeObject read_code_object(std::span<const unsigned char> bytes, const std::string& file) {
  try {
    return read_elf(bytes);
  } catch (const Damaged& damaged) {
    throw Error(Code::kDataLoss, file + " is damaged: " + damaged.what + ". Install the wheel again.");
  }
}

}  // namespace jax_aiter
