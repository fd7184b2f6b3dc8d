// The upload of minibatches to a device that cannot read host memory: where the parts are stored, and what is copied.
#include "engine/step/input_feed.h"

#include <algorithm>
#include <cstring>

#include "support/catch.h"

using namespace dp;
using namespace dp::engine;

namespace {

struct Feed {
  Feed() {
    kernels::ContextOptions options;
    options.discrete_memory = true;
    context = kernels::backend(DeviceKind::reference).open({DeviceKind::reference, 0}, options);
    compute = context->make_stream();
    feed.emplace(*context, *compute);
  }
  bool holds(std::size_t offset, const std::vector<std::uint8_t>& bytes) {
    return std::memcmp(feed->begin_of_inputs() + offset, bytes.data(), bytes.size()) == 0;
  }

  std::unique_ptr<kernels::Context> context;
  std::unique_ptr<kernels::Stream> compute;
  std::optional<InputFeed> feed;
};

std::vector<std::uint8_t> bytes_from(std::uint8_t first, std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(first + i);
  return bytes;
}

}  // namespace

TEST_CASE("input feed: each part is rounded up, and the memory is three times a minibatch") {
  CHECK(InputFeed::bytes_for({{{nullptr, 65}, {nullptr, 64}, {nullptr, 0}}}) == 192);
  CHECK(InputFeed::bytes_for({{{nullptr, 1}, {nullptr, 1}, {nullptr, 1}}}) == 192);
  CHECK(InputFeed::bytes_for({}) == 0);
  Feed own;
  CHECK(own.feed->begin_of_inputs() == nullptr);
  CHECK(own.feed->held_bytes() == 0);
  own.feed->reserve(256);
  CHECK(own.feed->held_bytes() == 768);
  const std::byte* const place = own.feed->begin_of_inputs();
  CHECK(place != nullptr);
  for (const std::size_t smaller : {100, 256}) {
    own.feed->reserve(smaller);
    CHECK(own.feed->held_bytes() == 768);
    CHECK(own.feed->begin_of_inputs() == place);
  }
  own.feed->reserve(512);
  CHECK(own.feed->held_bytes() == 1536);
}

TEST_CASE("input feed: shards are stored one after another, and the next minibatch starts at the beginning") {
  Feed own;
  own.feed->reserve(512);
  std::byte* const start = own.feed->begin_of_inputs();
  for (const int first : {1, 100, 200}) {
    INFO(first);
    own.feed->begin();
    for (const std::size_t shard : {std::size_t{0}, std::size_t{256}}) {
      const auto base = static_cast<std::uint8_t>(first + static_cast<int>(shard));
      const auto images = bytes_from(base, 65), labels = bytes_from(base + 7, 4), samples = bytes_from(base + 9, 8);
      const auto places = own.feed->upload({{{images.data(), 65}, {labels.data(), 4}, {samples.data(), 8}}});
      CHECK(places[0] == start + shard);
      CHECK(places[1] == start + shard + 128);
      CHECK(places[2] == start + shard + 192);
      CHECK(own.holds(shard, images));
      CHECK(own.holds(shard + 128, labels));
      CHECK(own.holds(shard + 192, samples));
    }
  }
}

TEST_CASE("input feed: parts without a source have memory and are not copied") {
  Feed own;
  own.feed->reserve(256);
  const auto labels = bytes_from(1, 4), old = bytes_from(50, 64);
  std::memcpy(own.feed->begin_of_inputs(), old.data(), 64);
  std::memcpy(own.feed->begin_of_inputs() + 128, old.data(), 64);
  own.feed->begin();
  const auto places = own.feed->upload({{{nullptr, 64}, {labels.data(), 4}, {nullptr, 8}}});
  CHECK(places[0] == own.feed->begin_of_inputs());
  CHECK(places[1] == own.feed->begin_of_inputs() + 64);
  CHECK(places[2] == own.feed->begin_of_inputs() + 128);
  CHECK(own.holds(0, old));
  CHECK(own.holds(64, labels));
  CHECK(own.holds(128, old));

  own.feed->begin();
  CHECK(own.feed->upload({{{nullptr, 64}, {nullptr, 4}, {labels.data(), 0}}})[2] == own.feed->begin_of_inputs() + 128);
  CHECK(own.holds(0, old));
  CHECK(own.holds(64, labels));
  CHECK(own.holds(128, old));
}
