// Choice of AITER's GEMM kernels: rows of the table beside the code objects, and the heuristic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "hip.h"
#include "objects.h"

namespace jax_aiter {

// One kernel: a row of AITER's CSV.
struct GemmRow {
  std::string kernel;  // symbol
  std::string file;    // of its code object
  unsigned tile_m;
  unsigned tile_n;
  std::map<std::string, std::string, std::less<>> fields;  // all columns, names in small letters

  // A column as a number, or `otherwise` if the table lacks it.
  int number(std::string_view column, int otherwise) const;
};

struct GemmTable {
  std::string path;  // of the CSV
  std::string folder;
  std::vector<GemmRow> rows;
};

// The table in the module's folder for the device: its only *.csv, as AITER ships it. Read once. Throws Error if it is
// missing or a row is invalid (with file and line).
const GemmTable& gemm_table(const Device& device);

// Reads the text of a table; `path` is for messages.
GemmTable parse_gemm_table(const std::string& text, const std::string& path);

// out[m,n] = a[m,k] @ b[n,k]^T on a device with `compute_units` compute units.
struct GemmProblem {
  std::int64_t m, n, k;
  int compute_units;
  std::string_view kernel;  // this one only; empty for any
};

// Suitability of a kernel for a problem: the possible splits of k among blocks, or the reason why it cannot run.
struct GemmOptions {
  std::vector<int> splits;
  std::string refusal;
};

struct GemmChoice {
  const GemmRow* row;
  int split;
  Grid grid;  // x over n, y over m, z over the parts of k
};

// The best row and split. Fewest rounds of the compute units first, as in AITER's heuristic; then the fewest rows of
// padding, the fewest idle compute units, the highest arithmetic intensity, the smallest split and the first row. The
// order is total, so the choice is deterministic. Throws Error (kUnimplemented) with the reason for each row, or
// (kNotFound) if no row has the requested name.
GemmChoice choose_gemm(const GemmTable& table, const GemmProblem& problem,
                       const std::function<GemmOptions(const GemmRow&)>& options);

// Throws Error unless the sizes fit the kernels: 32-bit sizes and strides, operands within a buffer descriptor's range.
void check_extents(const GemmProblem& problem, std::int64_t a_bytes, std::int64_t b_bytes, std::int64_t out_bytes);

// The first arguments of the bf16 and fp4 kernels: d = alpha * a @ b^T + beta * c.
struct GemmArgs {
  Slot<void*> d;
  Slot<const void*> c;
  Slot<const void*> a;
  Slot<const void*> b;
  Slot<float> alpha;
  Slot<float> beta;
  Slot<std::uint32_t> stride_d0, stride_d1, stride_c0, stride_c1, stride_a0, stride_a1, stride_b0, stride_b1;
  Slot<std::uint32_t> m, n, k;
};
static_assert(offsetof(GemmArgs, a) == 32 && offsetof(GemmArgs, b) == 48 && offsetof(GemmArgs, alpha) == 64);
static_assert(offsetof(GemmArgs, stride_d0) == 96 && offsetof(GemmArgs, stride_b1) == 208);
static_assert(offsetof(GemmArgs, m) == 224 && offsetof(GemmArgs, k) == 256 && sizeof(GemmArgs) == 272);

// Arguments of a plain product of contiguous operands; `row` is the stride of d and c, `step` that of a and b.
inline GemmArgs gemm_args(void* d, const void* a, const void* b, const GemmProblem& problem, std::int64_t row,
                          std::int64_t step) {
  GemmArgs args{};
  args.d.value = d;
  args.a.value = a;
  args.b.value = b;
  args.alpha.value = 1;
  args.stride_d0.value = args.stride_c0.value = static_cast<std::uint32_t>(row);
  args.stride_a0.value = args.stride_b0.value = static_cast<std::uint32_t>(step);
  args.m.value = static_cast<std::uint32_t>(problem.m);
  args.n.value = static_cast<std::uint32_t>(problem.n);
  args.k.value = static_cast<std::uint32_t>(problem.k);
  return args;
}

// ceil(a / b)
constexpr std::int64_t parts(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace jax_aiter
