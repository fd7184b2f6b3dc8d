// The step loop does not allocate. Every operator new is counted, except records of less than 1 KiB that oneDNN
// allocates and frees inside a primitive's execution; its API has no hook for those.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "support/catch.h"
#include "support/emulated_bfloat16.h"
#include "support/training.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

bool made_by_onednn(const void* caller) {
  Dl_info info{};
  return dladdr(caller, &info) != 0 && info.dli_fname != nullptr && std::strstr(info.dli_fname, "libdnnl") != nullptr;
}

void* counted(std::size_t bytes, std::size_t alignment, const void* caller) {
  if (counting.load(std::memory_order_relaxed) && !(bytes < 1024 && made_by_onednn(caller)))
    allocations.fetch_add(1, std::memory_order_relaxed);
  void* p = alignment > 16 ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                           : std::malloc(bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, 0, __builtin_return_address(0)); }
void* operator new[](std::size_t bytes) { return counted(bytes, 0, __builtin_return_address(0)); }
void* operator new(std::size_t bytes, std::align_val_t a) {
  return counted(bytes, static_cast<std::size_t>(a), __builtin_return_address(0));
}
void* operator new[](std::size_t bytes, std::align_val_t a) {
  return counted(bytes, static_cast<std::size_t>(a), __builtin_return_address(0));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

using namespace dp;
using namespace dp::test;

TEST_CASE("nothing is allocated after the first step") {
  const Model model = models::mnist_convnet();
  const Batch whole = random_batch(model, 12), rest = random_batch(model, 5);
  for (const int replicas : {1, 2, 3})
    for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded})
      for (const LossAt loss : {LossAt::local, LossAt::gathered}) {
        DataParallelOptions options = on_cpus(replicas);
        options.reduce = reduce;
        options.loss = loss;
        options.grad_accum_steps = replicas;
        if (replicas == 3) options.reduce_dtype = DType::bf16;
        if (replicas == 2) options.trace_steps = 1000, options.timeout_seconds = 60;
        if (loss == LossAt::gathered) options.clip_grad_norm = 1;
        DataParallel net(model, options);
        Optimizer optimizer = Sgd{.lr = 0.01f, .momentum = 0.9f};
        if (replicas == 2 && loss == LossAt::gathered) optimizer = AdamW{};
        if (replicas == 3 && loss == LossAt::local) optimizer = Lamb{};
        if (replicas == 3 && loss == LossAt::gathered) optimizer = Muon{};
        net.prepare({12, 5}, {12}, {}, {}, optimizer);
        net.train_step(whole, optimizer);
        allocations = 0;
        counting = true;
        for (int step = 0; step < 2; ++step) net.train_step(whole, optimizer);
        net.train_step(rest, optimizer);  // another batch size, passed to prepare()
        net.evaluate(whole);
        counting = false;
        INFO(replicas << " replicas, reduce " << static_cast<int>(reduce) << ", gathered "
                      << (loss == LossAt::gathered));
        CHECK(allocations == 0);
      }
}

// Counts the allocations of two training steps and an evaluation, after memory was prepared and one step was made.
long allocations_of(const DataParallelOptions& options) {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  const Batch whole = random_batch(model, 12), rest = random_batch(model, 5);
  DataParallel net(model, options);
  net.prepare({12, 5}, {12});
  const Sgd sgd{.lr = 0.01f, .momentum = 0.9f};
  net.train_step(whole, sgd);
  allocations = 0;
  counting = true;
  net.train_step(whole, sgd);
  net.train_step(rest, sgd);
  net.evaluate(whole);
  counting = false;
  return allocations;
}

TEST_CASE("nothing is allocated with batch normalisation, logical shards and a moving average") {
  for (const int replicas : {1, 2})
    for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::pooled, BatchNormMode::sync})
      for (const int shards : {0, 8}) {
        DataParallelOptions options = on_cpus(replicas);
        options.batch_norm = mode;
        options.logical_shards = shards;
        options.ema_decay = 0.99;
        INFO(replicas << " replicas, mode " << static_cast<int>(mode) << ", shards " << shards);
        CHECK(allocations_of(options) == 0);
      }
}

TEST_CASE("nothing is allocated by the steps and evaluations of a pipeline") {
  for (const PipelineSchedule schedule : {PipelineSchedule::gpipe, PipelineSchedule::zero_bubble}) {
    DataParallelOptions options = on_cpus(4);
    options.pipeline = {.stages = 2, .micro_batches = 3, .schedule = schedule};
    options.clip_grad_norm = 1;
    options.ema_decay = 0.99;
    CHECK(allocations_of(options) == 0);
  }
}

TEST_CASE("nothing is allocated in mixed precision") {
  const bool native = kernels::has_bfloat16();
  for (const bool emulated : native ? std::vector{false, true} : std::vector{true}) {
    std::optional<EmulatedBfloat16> emulation;
    if (emulated) emulation.emplace();
    DataParallelOptions options = on_cpus(2);
    options.amp = Amp::bfloat16;
    options.grad_accum_steps = 2;
    options.ema_decay = 0.99;
    INFO((emulated ? "emulated" : "native"));
    CHECK(allocations_of(options) == 0);
  }
}
