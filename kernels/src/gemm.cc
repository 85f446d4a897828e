#include "gemm.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

#include "error.h"
#include "module.h"

namespace jax_aiter {
namespace {

using Fields = std::vector<std::string>;

Fields split(std::string line) {
  line.erase(std::remove(line.begin(), line.end(), '\r'), line.end());
  Fields fields{""};
  for (const char c : line) {
    if (c == ',') {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

std::optional<int> to_number(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

[[noreturn]] void damaged(const std::string& path, std::size_t line, const std::string& what) {
  throw Error(Code::kDataLoss, path + ", line " + std::to_string(line) + ": " + what + ". Install the wheel again.");
}

// AITER's tables have different names for the same columns.
const std::string& column(const GemmRow& row, std::initializer_list<const char*> names, const std::string& path,
                          std::size_t line) {
  for (const char* name : names) {
    if (const auto found = row.fields.find(name); found != row.fields.end()) return found->second;
  }
  damaged(path, line, std::string("there is no column ") + *names.begin());
}

unsigned tile(const std::string& text, const std::string& path, std::size_t line) {
  const std::optional<int> value = to_number(text);
  if (!value || *value < 1) damaged(path, line, "'" + text + "' is no size of a tile");
  return static_cast<unsigned>(*value);
}

std::string only_csv(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(folder, ignored)) {
    if (file.path().extension() == ".csv") found.push_back(file.path().string());
  }
  if (found.size() != 1) {
    throw Error(Code::kNotFound, folder + " has " + std::to_string(found.size()) +
                                     " tables of kernels (*.csv), not one. Install the wheel again.");
  }
  return found.front();
}

// Smaller is better.
using Rank = std::tuple<std::int64_t, std::int64_t, std::int64_t, double, int>;

Rank rank(const GemmRow& row, const GemmProblem& problem, int split) {
  const std::int64_t tiles_m = parts(problem.m, row.tile_m);
  const std::int64_t blocks = tiles_m * parts(problem.n, row.tile_n) * split;
  const std::int64_t rounds = parts(blocks, problem.compute_units);
  const std::int64_t padding = tiles_m * row.tile_m - problem.m;
  const std::int64_t idle = rounds * problem.compute_units - blocks;
  const double efficiency = 1.0 * row.tile_m * row.tile_n / (row.tile_m + row.tile_n);
  return {rounds, padding, idle, -efficiency, split};
}

std::string describe(const GemmProblem& problem) {
  return "M=" + std::to_string(problem.m) + ", N=" + std::to_string(problem.n) + ", K=" + std::to_string(problem.k);
}

}  // namespace

int GemmRow::number(std::string_view name, int otherwise) const {
  const auto found = fields.find(name);
  if (found == fields.end()) return otherwise;
  return to_number(found->second).value_or(otherwise);
}

GemmTable parse_gemm_table(const std::string& text, const std::string& path) {
  GemmTable table{path, std::filesystem::path(path).parent_path().string(), {}};
  std::istringstream lines(text);
  std::string line;
  Fields header;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    Fields fields = split(line);
    if (fields.size() == 1 && fields.front().empty()) continue;
    if (header.empty()) {
      header = std::move(fields);
      for (std::string& name : header) {
        std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
        name.erase(std::remove(name.begin(), name.end(), '_'), name.end());
      }
      continue;
    }
    if (fields.size() != header.size()) damaged(path, number, "it has not as many fields as the first line");
    GemmRow row{};
    for (std::size_t i = 0; i < header.size(); ++i) row.fields.emplace(header[i], fields[i]);
    row.kernel = column(row, {"knlname"}, path, number);
    row.file = column(row, {"knlfile", "coname"}, path, number);
    row.tile_m = tile(column(row, {"tilem"}, path, number), path, number);
    row.tile_n = tile(column(row, {"tilen"}, path, number), path, number);
    if (row.kernel.empty() || row.file.empty() || row.file.find('/') != std::string::npos) {
      damaged(path, number, "it names no kernel or no file");
    }
    table.rows.push_back(std::move(row));
  }
  if (table.rows.empty()) damaged(path, 1, "it has no rows");
  return table;
}

const GemmTable& gemm_table(const Device& device) {
  static std::mutex lock;
  static std::map<std::string, std::unique_ptr<GemmTable>> tables;
  const std::string folder = module_folder(device);
  const std::lock_guard guard(lock);
  std::unique_ptr<GemmTable>& table = tables[folder];
  if (!table) {
    const std::string path = only_csv(folder);
    table = std::make_unique<GemmTable>(parse_gemm_table(read_file(path), path));
  }
  return *table;
}

GemmChoice choose_gemm(const GemmTable& table, const GemmProblem& problem,
                       const std::function<GemmOptions(const GemmRow&)>& options) {
  std::optional<std::pair<Rank, GemmChoice>> best;
  std::set<std::string> refusals;
  bool named = false;
  for (const GemmRow& row : table.rows) {
    if (!problem.kernel.empty() && problem.kernel != row.kernel) continue;
    named = true;
    if (problem.n % row.tile_n != 0) {
      refusals.insert("N is no multiple of " + std::to_string(row.tile_n));
      continue;
    }
    const GemmOptions able = options(row);
    if (able.splits.empty()) refusals.insert(able.refusal);
    for (const int split : able.splits) {
      const Rank its = rank(row, problem, split);
      if (best && best->first <= its) continue;
      const Grid grid{static_cast<unsigned>(parts(problem.n, row.tile_n)),
                      static_cast<unsigned>(parts(problem.m, row.tile_m)), static_cast<unsigned>(split)};
      best.emplace(its, GemmChoice{&row, split, grid});
    }
  }
  if (best) return best->second;
  if (!named) {
    throw Error(Code::kNotFound, table.path + " has no row for the kernel " + std::string(problem.kernel) + ".");
  }
  std::string why;
  for (const std::string& refusal : refusals) why += (why.empty() ? "" : "; ") + refusal;
  throw Error(Code::kUnimplemented, "No kernel of " + table.path + " fits " + describe(problem) + ": " + why + ".");
}

void check_extents(const GemmProblem& problem, std::int64_t a_bytes, std::int64_t b_bytes, std::int64_t out_bytes) {
  if (problem.m < 1 || problem.n < 1 || problem.k < 1 ||
      std::max({problem.m, problem.n, problem.k}) > std::numeric_limits<std::int32_t>::max()) {
    throw Error(Code::kInvalidArgument, describe(problem) + ": each has to be from 1 to 2^31 - 1.");
  }
  if (std::max({a_bytes, b_bytes, out_bytes}) > std::int64_t{std::numeric_limits<std::uint32_t>::max()}) {
    throw Error(Code::kUnimplemented, describe(problem) + ": an operand or the result has 4 GiB or more, which these "
                                                          "kernels cannot address.");
  }
}

}  // namespace jax_aiter
