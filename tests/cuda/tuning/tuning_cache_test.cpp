// The file that caches tuned choices: its content, recovery from damage, and file permissions.
#include "kernels/tuning/tuning_cache.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace dp;
using namespace dp::kernels::cuda;
using namespace dp::test;

TEST_CASE("tuning cache: stored choices are found again by the same machine only") {
  const TemporaryFolder folder;
  TuningCache cache(folder / "new", "a GPU");
  CHECK(!cache.find("a problem"));
  cache.keep("a problem", {"first", 3});
  cache.keep("another\tone", {"second\n", 2.5});
  cache.keep("a problem", {"third", 1.25});
  for (TuningCache again(folder / "new", "a GPU"); const TuningCache* const seen : {&cache, &again}) {
    REQUIRE(seen->find("a problem"));
    CHECK(seen->find("a problem")->candidate == "third");
    CHECK(seen->find("a problem")->microseconds == 1.25);
    CHECK(seen->find("another\tone")->microseconds == 2.5);
  }
  const TuningCache other(folder / "new", "another GPU");
  CHECK(!other.find("a problem"));
  std::filesystem::copy_file(cache.file(), other.file());  // simulates a hash collision of the machine names
  CHECK(!TuningCache(folder / "new", "another GPU").find("a problem"));
}

TEST_CASE("tuning cache: the valid lines of a damaged file are used") {
  const TemporaryFolder folder;
  std::string text, file;
  {
    TuningCache cache(folder.path(), "a GPU");
    for (int i = 0; i < 5; ++i) cache.keep("problem " + std::to_string(i), {"candidate", 1.0 * i});
    text = read_text(file = cache.file());
  }
  const auto found = [&] {
    int count = 0;
    const TuningCache cache(folder.path(), "a GPU");
    for (int i = 0; i < 5; ++i) count += cache.find("problem " + std::to_string(i)).has_value();
    return count;
  };
  CHECK(found() == 5);
  for (std::size_t length = 0; length < text.size(); length += 7) {  // truncated
    write_text(file, text.substr(0, length));
    const bool whole = text[length] == '\n';  // only its newline is missing
    CHECK(found() == std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length), '\n') + whole);
  }
  for (std::size_t at = 0; at < text.size(); at += 5) {  // a wrong byte spoils its line, a wrong newline two
    std::string wrong = text;
    wrong[at] = wrong[at] == 'x' ? 'y' : 'x';
    write_text(file, wrong);
    CHECK(found() >= 3);
    CHECK(found() < 5);
  }
  std::string zeros(1000, '\0');
  write_text(file, zeros.append("\n").append(text));
  CHECK(found() == 5);
  write_text(file, std::string(5 << 20, 'x'));
  CHECK(found() == 0);
  TuningCache(folder.path(), "a GPU").keep("problem 3", {"candidate", 1});
  CHECK(found() == 1);  // an oversized file is replaced
}

TEST_CASE("tuning cache: a path that is not a regular file does not stop the run") {
  const TemporaryFolder folder;
  TuningCache cache(folder.path(), "a GPU");
  REQUIRE(::mkfifo(cache.file().c_str(), 0600) == 0);  // a pipe without a reader
  cache.keep("problem", {"candidate", 1});
  CHECK(cache.find("problem"));
  CHECK(!TuningCache(folder.path(), "a GPU").find("problem"));
}

TEST_CASE("tuning cache: without a writable file choices are cached in memory") {
  TuningCache nowhere("", "a GPU"), forbidden("/proc/nowhere", "a GPU");
  for (TuningCache* const cache : {&nowhere, &forbidden}) {
    cache->keep("a problem", {"one", 1});
    CHECK(cache->find("a problem"));
  }
  CHECK(nowhere.file().empty());
}

TEST_CASE("tuning cache: processes that write at the same time do not lose choices") {
  const TemporaryFolder folder;
  std::vector<pid_t> writers;
  for (int process = 0; process < 4; ++process) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      TuningCache cache(folder.path(), "a GPU");
      for (int i = 0; i < 200; ++i)
        cache.keep("problem " + std::to_string(process) + " " + std::to_string(i), {"candidate", 1});
      ::_exit(0);
    }
    writers.push_back(child);
  }
  for (const pid_t writer : writers) ::waitpid(writer, nullptr, 0);
  const TuningCache cache(folder.path(), "a GPU");
  for (int process = 0; process < 4; ++process)
    for (int i = 0; i < 200; ++i) REQUIRE(cache.find("problem " + std::to_string(process) + " " + std::to_string(i)));
}
