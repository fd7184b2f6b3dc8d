// Counts allocations: none in a running loader, and none for sizes that a hostile file only claims.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "data/formats/idx.h"
#include "data/idx_bytes.h"
#include "data/small_dataset.h"
#include "support/catch.h"

namespace {

std::atomic<std::size_t> allocations{0}, largest{0};

void* counted(std::size_t size, std::size_t alignment) {
  ++allocations;
  std::size_t seen = largest;
  while (size > seen && !largest.compare_exchange_weak(seen, size)) {
  }
  const std::size_t whole = (size + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, whole ? whole : alignment)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return counted(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

using dp::test::Bytes;
using dp::test::idx_images;
using dp::test::idx_labels;

TEST_CASE("the allocation counter counts") {
  const std::size_t before = allocations;
  CHECK(std::make_unique<int>(3));
  CHECK(allocations > before);
}

TEST_CASE("a started loader allocates nothing, epoch after epoch") {
  const auto dataset = std::make_shared<dp::test::SmallDataset>(203, dp::Shape{3, 32, 32});
  const dp::Augmentation varied{.rotation = 9.0f, .color_jitter = dp::ColorJitter{0.4f, 0.4f, 0.4f, 0.1f}};
  for (const auto policy : {dp::AutoAugment::none, dp::AutoAugment::ra, dp::AutoAugment::augmix}) {
    const auto augmented = dp::changed(policy == dp::AutoAugment::none ? dp::Augmentation{} : varied,
                                       {.auto_augment = policy, .random_erase = 0.5f});
    dp::Loader loader(dp::with_augmentation(dataset, augmented), {.batch_size = 10, .augment = true, .workers = 2});
    loader.start(0);
    REQUIRE(loader.next());
    const std::size_t before = allocations;
    std::int64_t samples = 10;
    for (std::int64_t epoch = 1; epoch <= 3; ++epoch) {
      while (const dp::Batch* batch = loader.next()) samples += batch->size();
      loader.start(epoch);
    }
    const std::size_t after = allocations;
    CHECK(samples == 3 * 203);
    CHECK(after == before);
  }
}

namespace {

// The largest allocation while these files are refused.
std::size_t largest_while_refused(const Bytes& images, const Bytes& labels) {
  dp::MemoryReader image_source("images", images), label_source("labels", labels);
  largest = 0;
  try {
    dp::read_idx(image_source, label_source, {28, 28, 10}, {{0.1f}, {0.3f}});
  } catch (const dp::Error&) {
    return largest;
  }
  FAIL("accepted");
  return 0;
}

Bytes with_count(Bytes bytes, std::uint32_t count) {
  for (std::size_t i = 0; i < 4; ++i) bytes.at(4 + i) = static_cast<std::uint8_t>(count >> (24 - 8 * i));
  return bytes;
}

}  // namespace

TEST_CASE("no memory is allocated for sizes that a file only claims") {
  constexpr std::size_t kLimit = 1 << 18;
  const Bytes images = idx_images(3), labels = idx_labels(3);
  for (const std::uint32_t count : {0x7fffffffu, 0xffffffffu, 0x10000000u}) {
    CHECK(largest_while_refused(with_count(images, count), labels) < kLimit);
    CHECK(largest_while_refused(images, with_count(labels, count)) < kLimit);
    CHECK(largest_while_refused(with_count(images, count), with_count(labels, count)) < kLimit);
    CHECK(largest_while_refused(dp::test::gzip(with_count(images, count)), labels) < kLimit);
  }
}

TEST_CASE("a gzip bomb takes no memory") {
  constexpr std::size_t kLimit = 1 << 18;
  Bytes bomb = idx_images(3);
  bomb.resize(16 << 20);
  const Bytes packed = dp::test::gzip(bomb), labels = idx_labels(3);
  REQUIRE(packed.size() < 40000);
  CHECK(largest_while_refused(packed, labels) < kLimit);
  CHECK(largest_while_refused(dp::test::gzip(with_count(bomb, 0xffffffff)), labels) < kLimit);
  // The size agrees with the header, but not with the labels.
  Bytes agreeing = with_count(bomb, 20000);
  agreeing.resize(16 + 20000 * 784);
  CHECK(largest_while_refused(dp::test::gzip(agreeing), labels) < kLimit);
}
