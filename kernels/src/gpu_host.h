// gpu.h for the host: a block's threads are coroutines, so a kernel's unchanged source runs on a CPU. Each group of 32
// lanes, which shuffle together, runs to the next barrier before another group starts. Tests choose the order of
// groups: if a kernel's result depends on it, a barrier is missing.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#define GPU_DEVICE static inline
#define GPU_DEVICE_MEMBER static inline
#define GPU_KERNEL(name, Args)                                                                                     \
  static void name##_thread(const Args& args);                                                                     \
  extern "C" __attribute__((visibility("default"))) void name(const Args& args, unsigned blocks, unsigned threads, \
                                                              unsigned seed) {                                     \
    gpu_host::run(blocks, threads, seed, [&] { name##_thread(args); });                                            \
  }                                                                                                                \
  static void name##_thread(const Args& args)
#define GPU_SHARED static

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long;
using Half = _Float16;

namespace gpu_host {

constexpr std::size_t kStackBytes = 64 * 1024;
constexpr u32 kGroup = 32;

enum class State { kReady, kAtShuffle, kAtBarrier, kDone };

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  State state;
};

struct Block {
  std::function<void()> body;
  std::vector<Thread> threads;
  std::vector<float> exchanged;
  ucontext_t scheduler;
  u32 number = 0, running = 0;
};

inline Block* block = nullptr;

inline void enter() {
  block->body();
  block->threads[block->running].state = State::kDone;
}

// Waits: at a shuffle for the lanes of the group, at a barrier for all threads of the block.
inline void wait(State where) {
  Thread& self = block->threads[block->running];
  self.state = where;
  swapcontext(&self.context, &block->scheduler);
}

inline void start_threads() {
  for (Thread& thread : block->threads) {
    if (!thread.stack) thread.stack = std::make_unique<char[]>(kStackBytes);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = &block->scheduler;
    thread.state = State::kReady;
    makecontext(&thread.context, enter, 0);
  }
}

// Resumes the threads of a range if all of them wait at the same point.
inline bool release(u32 first, u32 count, State where) {
  for (u32 i = first; i < first + count; ++i) {
    if (block->threads[i].state != where) return false;
  }
  for (u32 i = first; i < first + count; ++i) block->threads[i].state = State::kReady;
  return true;
}

inline void run_group(u32 first) {
  do {
    for (u32 lane = first; lane < first + kGroup; ++lane) {
      if (block->threads[lane].state != State::kReady) continue;
      block->running = lane;
      swapcontext(&block->scheduler, &block->threads[lane].context);
    }
  } while (release(first, kGroup, State::kAtShuffle));
}

// seed: seed of the order of groups; 0 keeps the natural order.
inline void run(unsigned blocks, unsigned threads, unsigned seed, const std::function<void()>& body) {
  Block made;
  block = &made;
  made.body = body;
  made.threads.resize(threads);
  made.exchanged.resize(threads);
  std::vector<u32> groups(threads / kGroup);
  for (u32 i = 0; i < groups.size(); ++i) groups[i] = i * kGroup;
  std::mt19937 random(seed);
  for (made.number = 0; made.number < blocks; ++made.number) {
    start_threads();
    do {
      if (seed != 0) std::shuffle(groups.begin(), groups.end(), random);
      for (const u32 group : groups) run_group(group);
    } while (release(0, threads, State::kAtBarrier));
    // A GPU would hang if some threads skip a barrier.
    for (const Thread& thread : made.threads) {
      if (thread.state != State::kDone) std::abort();
    }
  }
  block = nullptr;
}

}  // namespace gpu_host

GPU_DEVICE u32 gpu_thread() { return gpu_host::block->running; }
GPU_DEVICE u32 gpu_block() { return gpu_host::block->number; }
GPU_DEVICE void gpu_barrier() { gpu_host::wait(gpu_host::State::kAtBarrier); }

GPU_DEVICE float gpu_shuffle_xor(float value, u32 mask) {
  const u32 self = gpu_thread();
  gpu_host::block->exchanged[self] = value;
  gpu_host::wait(gpu_host::State::kAtShuffle);
  const float from = gpu_host::block->exchanged[self ^ mask];
  gpu_host::wait(gpu_host::State::kAtShuffle);
  return from;
}

GPU_DEVICE float gpu_sqrt(float value) { return std::sqrt(value); }
GPU_DEVICE float to_float(Half value) { return static_cast<float>(value); }
GPU_DEVICE Half to_half(float value) { return static_cast<Half>(value); }
