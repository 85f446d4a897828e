// gpu.h for the host: a block's threads are coroutines that run until they meet, so that the very source of a kernel runs
// on a CPU. Between two meetings they run one after the other, in an order that a check chooses: a kernel whose result
// depends on it lacks a barrier.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
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

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done;
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
  block->threads[block->running].done = true;
}

// Lets every other thread come here before any goes on.
inline void meet() {
  const u32 self = block->running;
  swapcontext(&block->threads[self].context, &block->scheduler);
}

inline void run(unsigned blocks, unsigned threads, unsigned seed, const std::function<void()>& body) {
  Block made;
  block = &made;
  made.body = body;
  made.threads.resize(threads);
  made.exchanged.resize(threads);
  std::vector<u32> order(threads);
  for (u32 i = 0; i < threads; ++i) order[i] = i;
  std::mt19937 random(seed);
  for (made.number = 0; made.number < blocks; ++made.number) {
    for (Thread& thread : made.threads) {
      if (!thread.stack) thread.stack = std::make_unique<char[]>(kStackBytes);
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = thread.stack.get();
      thread.context.uc_stack.ss_size = kStackBytes;
      thread.context.uc_link = &made.scheduler;
      thread.done = false;
      makecontext(&thread.context, enter, 0);
    }
    for (bool left = true; left;) {
      left = false;
      for (u32 i = threads - 1; seed != 0 && i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
      for (const u32 next : order) {
        if (made.threads[next].done) continue;
        made.running = next;
        swapcontext(&made.scheduler, &made.threads[next].context);
        left = true;
      }
    }
  }
  block = nullptr;
}

}  // namespace gpu_host

GPU_DEVICE u32 gpu_thread() { return gpu_host::block->running; }
GPU_DEVICE u32 gpu_block() { return gpu_host::block->number; }
GPU_DEVICE void gpu_barrier() { gpu_host::meet(); }

GPU_DEVICE float gpu_shuffle_xor(float value, u32 mask) {
  const u32 self = gpu_thread();
  gpu_host::block->exchanged[self] = value;
  gpu_host::meet();
  const float from = gpu_host::block->exchanged[self ^ mask];
  gpu_host::meet();
  return from;
}

GPU_DEVICE float gpu_sqrt(float value) { return std::sqrt(value); }
GPU_DEVICE float to_float(Half value) { return static_cast<float>(value); }
GPU_DEVICE Half to_half(float value) { return static_cast<Half>(value); }
