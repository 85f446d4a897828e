// Distribution of rows of equal length over blocks of threads: shared by kernels, handlers and checks.
#pragma once

// A block computes a chunk of long rows, or several short rows at a time.
struct Spread {
  unsigned long rows;
  unsigned items;    // of a row; each is one thread's work
  unsigned group;    // rows of a block at a time
  unsigned chunks;   // blocks of a row
  unsigned threads;  // of a block
  unsigned blocks;   // a multiple of chunks
  unsigned unused;
};
static_assert(sizeof(Spread) == 32);

constexpr unsigned kSpreadThreads = 256;
// HIP launches fewer than 2^32 threads, so blocks compute several chunks and rows.
constexpr unsigned long kSpreadBlocks = 1ul << 20;

// For rows of 1 to 2^31 - 1 items.
constexpr Spread spread(unsigned long rows, unsigned items) {
  const unsigned group = items < kSpreadThreads ? kSpreadThreads / items : 1;
  unsigned long chunks = (items - 1) / kSpreadThreads + 1;
  if (chunks > kSpreadBlocks) chunks = kSpreadBlocks;
  unsigned long slots = rows / group + (rows % group != 0);
  if (slots > kSpreadBlocks / chunks) slots = kSpreadBlocks / chunks;
  return {rows, items, group, static_cast<unsigned>(chunks), kSpreadThreads, static_cast<unsigned>(slots * chunks), 0};
}

#ifdef GPU_DEVICE
// Calls work(row, item) for each item of a block's thread.
template <typename Work>
GPU_DEVICE void for_each_item(const Spread& spread, const Work& work) {
  const u32 slot = gpu_block() / spread.chunks, chunk = gpu_block() % spread.chunks;
  const u64 step = u64{spread.blocks / spread.chunks} * spread.group;
  for (u64 first = u64{slot} * spread.group; first < spread.rows; first += step) {
    u32 item = chunk * spread.threads + gpu_thread();
    for (; item < spread.group * spread.items; item += spread.chunks * spread.threads) {
      const u64 row = first + item / spread.items;
      if (row < spread.rows) work(row, item % spread.items);
    }
  }
}
#endif
