// Text for terminals, logs and JSON files.
#include "engine/base/text.h"

#include <cmath>

#include "dp/trainer.h"
#include "engine/train/record/run_config.h"
#include "support/catch.h"

namespace {

using nlohmann::ordered_json;

TEST_CASE("no byte reaches a terminal as a control character") {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string shown = dp::printable(std::string("a") + static_cast<char>(byte) + "b");
    const bool plain = byte >= 0x20 && byte < 0x7f;
    CHECK((shown.size() == 3) == plain);
    for (const char c : shown) CHECK((c >= 0x20 && c < 0x7f));
  }
  CHECK(dp::printable("\x1b[2J\n") == "\\x1b[2J\\x0a");
  CHECK(dp::printable("größe 数 😀") == "größe 数 😀");
  CHECK(dp::printable("\xc2\x9b"
                      "31m") == "\\xc2\\x9b31m");                               // 8-bit CSI
  CHECK(dp::printable("\xe2\x80\xae") == "\\xe2\\x80\\xae");                    // right-to-left override
  CHECK(dp::printable("\xe2\x82") == "\\xe2\\x82");                             // truncated
  CHECK(dp::printable("\xc0\xaf\xed\xa0\x80") == "\\xc0\\xaf\\xed\\xa0\\x80");  // overlong, surrogate
}

TEST_CASE("a JSON line is one line of ASCII for any input") {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = std::string("x") + static_cast<char>(byte);
    const std::string line = dp::json_line(ordered_json{{"k", text}});
    for (const char c : line) CHECK((c >= 0x20 && c < 0x7f));
    const auto back = ordered_json::parse(line);
    if (byte < 0x80) CHECK(back["k"].get<std::string>() == text);
  }
  CHECK(dp::json_line(ordered_json{{"k", std::nan("")}}) == R"({"k":null})");
}

TEST_CASE("TOML strings are escaped, and other scripts are kept") {
  CHECK(dp::toml_string("a\"b\\c\n\t\x7f") == R"("a\"b\\c\n\t\u007f")");
  CHECK(dp::toml_string("数😀") == "\"数😀\"");
  CHECK(dp::toml_string(std::string(1, '\0')) == R"("\u0000")");
}

TEST_CASE("the options of a run become TOML, with automatic choices in a table of their own") {
  dp::TrainerOptions options;
  options.dataset_name = "evil\"\nlr = 9";
  options.parallel.devices = dp::cpus(2);
  options.schedule.kind = dp::ScheduleKind::multistep;
  options.schedule.milestones = {1, 2.5};
  options.record = {{"data-path", std::string("/data")}, {"images", {}}};
  dp::TrainerOptions resolved = options;
  resolved.workers = 3;
  resolved.parallel.reduce = dp::Reduce::sharded;
  const std::string toml = dp::to_toml(dp::run_config("mlp", options, resolved));
  CHECK(toml.find("model = \"mlp\"\n") == 0);
  CHECK(toml.find(R"(dataset = "evil\"\nlr = 9")"
                  "\n") != std::string::npos);
  CHECK(toml.find("\nreduce = \"auto\"\n") != std::string::npos);
  CHECK(toml.find("\ndata-path = \"/data\"\n") != std::string::npos);
  CHECK(toml.find("images = ") == std::string::npos);
  CHECK(toml.ends_with("\n\n[resolved]\ndevices = [\"cpu\", \"cpu\"]\nreduce = \"sharded\"\nworkers = 3\n"));
  CHECK(toml.find("lr = 0.05\n") != std::string::npos);
  CHECK(toml.find("lr-milestones = [1.0, 2.5]\n") != std::string::npos);
  CHECK(toml.find("nesterov = false\n") != std::string::npos);
  CHECK(toml.find("seed = 42\n") != std::string::npos);
}

TEST_CASE("durations and large numbers are readable") {
  CHECK(dp::duration(0) == "0:00:00");
  CHECK(dp::duration(3671.6) == "1:01:12");
  CHECK(dp::duration(-1) == "0:00:00");
  CHECK(dp::duration(INFINITY) == "0:00:00");
  CHECK(dp::with_separators(0) == "0");
  CHECK(dp::with_separators(999) == "999");
  CHECK(dp::with_separators(1199882) == "1,199,882");
  CHECK(dp::with_separators(-1000) == "-1,000");
  CHECK(dp::mebibytes(3 << 20) == "3.0 MiB");
}

}  // namespace
