// Files as sources of bytes: errors of the system, and descriptors.
#include "data/formats/byte_reader.h"

#include <filesystem>
#include <numeric>

#include "data/refusal.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using dp::test::data_refusal;
using dp::test::TemporaryFolder;

const std::string kRemedy = "; give a readable file, or train without it: --dataset digits";

std::ptrdiff_t open_descriptors() { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); }

}  // namespace

TEST_CASE("a file is read in pieces, to its end, and again from its beginning") {
  const TemporaryFolder folder;
  std::vector<std::uint8_t> bytes(100);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  folder.write("file", bytes);
  dp::FileReader file(folder / "file");
  dp::MemoryReader memory("memory", bytes);
  CHECK(file.name() == folder / "file");
  CHECK(memory.name() == "memory");
  for (dp::ByteReader* const reader : {static_cast<dp::ByteReader*>(&file), static_cast<dp::ByteReader*>(&memory)})
    for (int round = 0; round < 2; ++round) {
      CHECK(reader->size() == 100u);
      std::vector<std::uint8_t> piece(30), all;
      for (const std::size_t wanted : {30, 30, 30, 10, 0}) {
        const std::size_t got = reader->read(piece);
        CHECK(got == wanted);
        all.insert(all.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(got));
      }
      CHECK(all == bytes);
      reader->rewind();
    }
}

TEST_CASE("a file that cannot be opened or read is rejected with the reason of the system") {
  const TemporaryFolder folder;
  const std::string none = folder / "none";
  CHECK(data_refusal([&] { dp::FileReader file(none); }) ==
        none + ": cannot be opened (No such file or directory)" + kRemedy);
  CHECK(data_refusal([&] { dp::FileReader file(folder.path()); }) ==
        folder.path() + ": is a folder, not a file" + kRemedy);
  CHECK(data_refusal([&] { dp::FileReader file("/dev/null"); }) == "/dev/null: is not a regular file" + kRemedy);
  dp::FileReader memory("/proc/self/mem");  // nothing is mapped at address 0
  std::vector<std::uint8_t> bytes(4);
  CHECK(data_refusal([&] { memory.read(bytes); }) ==
        "/proc/self/mem: byte 0 cannot be read (Input/output error)" + kRemedy);
}

TEST_CASE("a reader closes its file, also if the file is rejected") {
  const TemporaryFolder folder;
  folder.write("file", std::vector<std::uint8_t>(3));
  const std::ptrdiff_t before = open_descriptors();
  {
    const dp::FileReader file(folder / "file");
    CHECK(open_descriptors() == before + 1);
  }
  CHECK(open_descriptors() == before);
  data_refusal([&] { dp::FileReader file(folder.path()); });
  CHECK(open_descriptors() == before);
}
