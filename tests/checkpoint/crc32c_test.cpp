#include "engine/base/crc32c.h"

#include <string_view>
#include <vector>

#include "dp/random.h"
#include "support/catch.h"

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

TEST_CASE("crc32c gives the known answers") {
  const std::vector<std::byte> zeros(32), ones(32, std::byte{0xff});
  for (const auto& crc : {dp::crc32c, dp::crc32c_portable}) {
    CHECK(crc(bytes_of("123456789"), 0) == 0xE3069283);
    CHECK(crc({}, 0) == 0);
    CHECK(crc(zeros, 0) == 0x8A9136AA);  // RFC 3720, B.4
    CHECK(crc(ones, 0) == 0x62A8AB43);
  }
}

TEST_CASE("crc32c is the same in pieces, by table and by instruction") {
  dp::Random random(3, dp::RandomUse::synthetic);
  std::vector<std::byte> data(300);
  for (std::byte& b : data) b = static_cast<std::byte>(random.next());
  const std::span<const std::byte> all(data);
  for (std::size_t cut = 0; cut <= data.size(); ++cut) {
    CHECK(dp::crc32c(all.subspan(cut), dp::crc32c(all.first(cut))) == dp::crc32c(all));
    CHECK(dp::crc32c(all.subspan(cut)) == dp::crc32c_portable(all.subspan(cut)));
  }
}
