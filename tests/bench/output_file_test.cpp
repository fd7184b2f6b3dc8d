// A result file of dp_bench: a pipe that is read slowly, and the old content.
#include "apps/dp_bench/report/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

#include "dp/error.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using dp_bench::OutputFile;
using namespace dp::test;

TEST_CASE("a result file: a slow reader of a pipe receives every byte once, then the end of the file") {
  const TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  std::string text;  // more than three times what a pipe holds
  for (int i = 0; text.size() < 250000; ++i) text += std::to_string(i) + ' ';
  const int reader = ::open((folder / "pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  auto file = std::make_unique<OutputFile>(folder / "pipe");
  REQUIRE(::fcntl(reader, F_SETFL, 0) == 0);
  std::string got;
  std::thread reading([&] {
    std::string part(20000, '\0');
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (ssize_t count = 0; (count = ::read(reader, part.data(), part.size())) > 0;) {
      got.append(part, 0, static_cast<std::size_t>(count));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  CHECK_NOTHROW(file->write(text));
  file.reset();  // the reader's end
  reading.join();
  CHECK(got == text);
  ::close(reader);
}

TEST_CASE("a result file keeps its old content until the new content replaces it") {
  const TemporaryFolder folder;
  const std::string path = folder / "out";
  write_text(path, "a long old text");
  OutputFile file(path);
  CHECK(read_text(path) == "a long old text");
  file.write("new");
  CHECK(read_text(path) == "new");
  OutputFile none("");
  CHECK_NOTHROW(none.write("nothing"));
  CHECK_THROWS_WITH(OutputFile(folder / "no/file"), "cannot write " + (folder / "no/file") +
                                                        ": No such file or directory; choose a writable folder with "
                                                        "free space");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(OutputFile(folder / "pipe"), "cannot write " + (folder / "pipe") +
                                                     ": it is a pipe or socket without a reader; choose a writable "
                                                     "folder with free space");
}
