// The fields of event files, decoded: the file's head, a resumed run, options, and large numbers.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "engine/train/record/event_file.h"
#include "engine/train/record/run_folder.h"
#include "support/catch.h"
#include "support/temporary_folder.h"
#include "train/expect_error.h"

namespace {

using namespace dp;
using dp::test::expect_error;
using dp::test::read_text;
using dp::test::TemporaryFolder;
using dp::test::write_text;

// A field of a protocol buffer: its number, and its value as an integer or as bytes.
struct Field {
  std::uint64_t number = 0, value = 0;
  std::string bytes{};
  double real() const {
    double value_of = 0;
    REQUIRE(bytes.size() == sizeof value_of);
    std::memcpy(&value_of, bytes.data(), sizeof value_of);
    return value_of;
  }
};

std::uint64_t read_varint(const std::string& text, std::size_t& at) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    REQUIRE(at < text.size());
    const auto byte = static_cast<unsigned char>(text[at++]);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

std::vector<Field> fields_of(const std::string& message) {
  std::vector<Field> fields;
  for (std::size_t at = 0; at < message.size();) {
    const std::uint64_t key = read_varint(message, at);
    Field field{.number = key >> 3};
    if (key % 8 == 0) {
      field.value = read_varint(message, at);
    } else {
      const std::uint64_t size = key % 8 == 1 ? 8 : key % 8 == 5 ? 4 : read_varint(message, at);
      REQUIRE(at + size <= message.size());
      field.bytes = message.substr(at, size);
      at += size;
    }
    fields.push_back(field);
  }
  return fields;
}

// The messages of a file, each with good checksums.
std::vector<std::vector<Field>> events_in(const std::string& file) {
  const std::string text = read_text(file);
  std::vector<std::vector<Field>> events;
  for (std::size_t at = 0; at < text.size();) {
    std::uint64_t size = 0;
    REQUIRE(at + 16 <= text.size());
    std::memcpy(&size, text.data() + at, sizeof size);
    const std::string message = text.substr(at + 12, size);
    REQUIRE(text.substr(at, size + 16) == event_frame(message));
    events.push_back(fields_of(message));
    at += size + 16;
  }
  return events;
}

// The bytes of the only field with this number.
std::string only(const std::vector<Field>& fields, std::uint64_t number) {
  std::vector<std::string> found;
  for (const Field& field : fields)
    if (field.number == number) found.push_back(field.bytes);
  REQUIRE(found.size() == 1);
  return found.front();
}

TEST_CASE("an event file begins with the version of its format, and a resumed one with the next step") {
  const TemporaryFolder temp;
  { EventFile(temp / "new", std::nullopt); }
  const auto events = events_in(temp / "new");
  REQUIRE(events.size() == 1);
  REQUIRE(events[0].size() == 2);
  CHECK(events[0][0].number == 1);
  CHECK(events[0][0].real() > 1.7e9);  // seconds since 1970
  CHECK(events[0][1].number == 3);
  CHECK(events[0][1].bytes == "brain.Event:2");
  {
    EventFile file(temp / "resumed", 300);
    file.add(1, {});  // writes nothing
    file.add(70'000, {{"a", 1.5}, {"b", -2}});
  }
  const auto resumed = events_in(temp / "resumed");
  REQUIRE(resumed.size() == 3);
  REQUIRE(resumed[1].size() == 3);
  CHECK(resumed[1][0].real() > 1.7e9);
  CHECK(resumed[1][1].number == 2);
  CHECK(resumed[1][1].value == 301);
  CHECK(resumed[1][2].number == 7);
  const auto log = fields_of(resumed[1][2].bytes);
  REQUIRE(log.size() == 1);
  CHECK(log[0].number == 1);
  CHECK(log[0].value == 1);
  CHECK(resumed[2][1].value == 70'000);
  const auto values = fields_of(only(resumed[2], 5));
  REQUIRE(values.size() == 2);
  const auto second = fields_of(values[1].bytes);
  CHECK(only(second, 1) == "b");
  CHECK(only(second, 2) == std::string("\0\0\0\xc0", 4));  // -2 in float32
  expect_error(ErrorCode::io, {"cannot write '" + temp / "new" + "': File exists; check its permissions"},
               [&] { EventFile again(temp / "new", std::nullopt); });
}

TEST_CASE("the options of a run are stored for TensorBoard by name, with their types") {
  const TemporaryFolder temp;
  {
    EventFile file(temp / "events", std::nullopt);
    file.add_options({{"flag", true},
                      {"whole", 48},
                      {"real", 0.5},
                      {"text", "digits"},
                      {"list", {1, 2}},
                      {"resolved", {{"workers", 1}}}});
  }
  const auto events = events_in(temp / "events");
  REQUIRE(events.size() == 2);
  const auto value = fields_of(only(fields_of(only(events[1], 5)), 1));
  CHECK(only(value, 1) == "_hparams_/session_start_info");
  const auto plugin = fields_of(only(fields_of(only(value, 9)), 1));
  CHECK(only(plugin, 1) == "hparams");
  const auto content = fields_of(only(plugin, 2));
  REQUIRE(content.size() == 2);
  CHECK(content[0].number == 1);
  CHECK(content[0].value == 0);
  std::map<std::string, Field> options;
  bool timed = false;
  for (const Field& field : fields_of(only(content, 3))) {
    if (field.number == 5) timed = field.real() > 1.7e9;
    if (field.number != 1) continue;
    const auto entry = fields_of(field.bytes);
    const auto held = fields_of(only(entry, 2));
    REQUIRE(held.size() == 1);
    options[only(entry, 1)] = held.front();
  }
  CHECK(timed);
  REQUIRE(options.size() == 5);
  CHECK(options["flag"].number == 4);
  CHECK(options["flag"].value == 1);
  CHECK(options["whole"].number == 2);
  CHECK(options["whole"].real() == 48);
  CHECK(options["real"].number == 2);
  CHECK(options["real"].real() == 0.5);
  CHECK(options["text"].number == 3);
  CHECK(options["text"].bytes == "digits");
  CHECK(options["list"].number == 3);
  CHECK(options["list"].bytes == "[1,2]");
}

TEST_CASE("the name of an event file has the time, the host and the process, and is new each time") {
  const TemporaryFolder temp;
  const std::string first = EventFile::new_name(temp.path()), second = EventFile::new_name(temp.path());
  CHECK(first != second);
  const std::regex form("events\\.out\\.tfevents\\.[0-9]{10}\\..+\\." + std::to_string(::getpid()) + "\\.[0-9]+");
  CHECK(std::regex_match(first, form));
  CHECK(std::regex_match(second, form));
}

TEST_CASE("a new event file sorts after all others of its folder, whatever the clock") {
  const TemporaryFolder temp;
  std::string last;
  for (const char* name : {"events.out.tfevents.0000000007.a.1.0", "events.out.tfevents.4102444800.z.9.9",
                           "events.out.tfevents.77777777777777777777.other", "events.out.tfevents.4102444801.z.9.9.v2",
                           "events.out.tfevents.text", "metrics.jsonl"}) {
    write_text(temp / name, "");
    const std::string next = EventFile::new_name(temp.path());
    INFO(name << ", " << next);
    if (std::string(name).find(".tfevents.4") != std::string::npos) CHECK(next > name);
    CHECK(next > last);
    write_text(temp / next, "");
    CHECK(EventFile::new_name(temp.path()) > next);
    last = next;
  }
  CHECK(last.starts_with("events.out.tfevents.41024448"));
}

std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("events.")) files.push_back(entry.path().string());
  return files;
}

TEST_CASE("a new run in a folder with old events discards them from step 0") {
  const TemporaryFolder temp;
  { RunFolder(temp / "run").begin("", std::nullopt); }
  REQUIRE(event_files(temp / "run").size() == 1);
  const std::string first = event_files(temp / "run").front();
  CHECK(events_in(first).size() == 1);
  { RunFolder(temp / "run").begin("", std::nullopt); }
  REQUIRE(event_files(temp / "run").size() == 2);
  for (const std::string& file : event_files(temp / "run")) {
    if (file == first) continue;
    const auto events = events_in(file);
    REQUIRE(events.size() == 2);
    CHECK(events[1][1].number == 2);
    CHECK(events[1][1].value == 0);
  }
}

TEST_CASE("a file to append to can be moved, cut and appended to, and without a file nothing happens") {
  const TemporaryFolder temp;
  AppendFile none;
  none.append("x");
  write_text(temp / "a", "old text");
  AppendFile file(temp / "a", AppendFile::Open::existing_or_new);
  none = std::move(file);
  none.keep(3);
  none.append(" end");
  CHECK(read_text(temp / "a") == "old end");
  AppendFile moved(std::move(none));
  moved.append("s");
  CHECK(read_text(temp / "a") == "old ends");
  expect_error(ErrorCode::io, {"cannot write '" + temp / "b/c" + "': No such file or directory; check its permissions"},
               [&] { AppendFile(temp / "b/c", AppendFile::Open::new_only); });
}

TEST_CASE("only the newest numbered checkpoints are kept, and folders with similar names are not removed") {
  const TemporaryFolder temp;
  RunFolder folder(temp / "run");
  CHECK_FALSE(folder.has_checkpoints());
  for (const char* name : {"step-9", "step-10", "step-100", "step-20", "step-7x", "step-", "step-99999999999999999999",
                           "last", "rewound-step-1"})
    std::filesystem::create_directory(folder.checkpoint(name));
  CHECK(folder.has_checkpoints());
  CHECK(folder.owns(folder.checkpoint("last")));
  CHECK_FALSE(folder.owns(temp / "run"));
  CHECK_FALSE(folder.owns(folder.checkpoint("none")));
  folder.keep_newest(2);
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(temp / "run/checkpoints"))
    names.insert(entry.path().filename().string());
  CHECK(names == std::set<std::string>{"last", "rewound-step-1", "step-", "step-100", "step-20", "step-7x",
                                       "step-99999999999999999999"});
  folder.keep_newest(0);
  CHECK_FALSE(std::filesystem::exists(folder.checkpoint("step-100")));
}

TEST_CASE("the training time of a run's folder is that of the last line that has one") {
  const TemporaryFolder temp;
  const RunFolder folder(temp.path());
  CHECK(folder.seconds_train() == 0);
  write_text(temp / "metrics.jsonl",
             "{\"seconds_train\":1.5}\n{\"seconds_train\":2.5}\nbroken\n[]\n{\"seconds_train\":\"x\"}\n{\"step\":1}\n");
  CHECK(folder.seconds_train() == 2.5);
}

}  // namespace
