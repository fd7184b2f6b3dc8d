// The manifest of a checkpoint, the names in a run's folder, and the header of each file.
#include <sys/wait.h>
#include <unistd.h>

#include <limits>

#include "checkpoint/files_support.h"
#include "checkpoint/scoped_file_ops.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "support/catch.h"

using namespace dp::test;

namespace {

const std::string kRecord = R"({"bytes":7,"crc32c":"0000000a"})";

std::string manifest_of(const std::map<std::string, std::string>& records) {
  std::string files;
  for (const auto& [name, record] : records) files += (files.empty() ? "\"" : ",\"") + name + "\":" + record;
  return R"({"format":"dp-checkpoint-1","files":{)" + files + "}}";
}

dp::Manifest parsed_manifest(const std::string& text) {
  dp::MemorySource source("m", std::as_bytes(std::span(text)));
  return dp::read_manifest(source);
}

std::string manifest_refusal(const std::string& text) {
  const Outcome outcome = outcome_of([&] { parsed_manifest(text); });
  CHECK(outcome.code == (outcome.text.empty() ? 0 : 3));
  return outcome.text;
}

std::map<std::string, std::string> whole() {
  return {{"model.safetensors", kRecord}, {"optimizer.safetensors", kRecord}, {"state.json", kRecord}};
}

}  // namespace

TEST_CASE("a manifest has the documented text and is read back") {
  const dp::Manifest manifest{{"state.json", {0, 0x1a}},
                              {"model.safetensors", {std::numeric_limits<std::uint64_t>::max(), 0xdeadbeef}},
                              {"optimizer.safetensors", {12, 0}}};
  const std::string text = R"({
  "format": "dp-checkpoint-1",
  "files": {
    "model.safetensors": {
      "bytes": 18446744073709551615,
      "crc32c": "deadbeef"
    },
    "optimizer.safetensors": {
      "bytes": 12,
      "crc32c": "00000000"
    },
    "state.json": {
      "bytes": 0,
      "crc32c": "0000001a"
    }
  }
}
)";
  CHECK(dp::to_json(manifest) == text);
  const dp::Manifest read = parsed_manifest(text);
  REQUIRE(read.size() == manifest.size());
  for (const auto& [name, record] : manifest) {
    CHECK(read.at(name).bytes == record.bytes);
    CHECK(read.at(name).crc == record.crc);
  }
}

TEST_CASE("a manifest lists exactly the files of a checkpoint") {
  CHECK(manifest_refusal(manifest_of(whole())).empty());
  auto records = whole();
  records["ema.safetensors"] = kRecord;
  CHECK(parsed_manifest(manifest_of(records)).size() == 4);
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    auto fewer = records;
    fewer.erase(name);
    CHECK(manifest_refusal(manifest_of(fewer)) == std::string("m: does not list ") + name);
  }
  for (const char* name : {"manifest.json", "other", ""}) {
    auto more = whole();
    more[name] = kRecord;
    CHECK(manifest_refusal(manifest_of(more)) ==
          std::string("m: lists '") + name + "', which is not a checkpoint file");
  }
  CHECK(manifest_refusal(R"({"format":1,"files":{}})") == "m: is not of the format dp-checkpoint-1");
}

TEST_CASE("a manifest has a size and a checksum of eight digits for each file") {
  const auto with = [](const std::string& record) {
    auto records = whole();
    records["state.json"] = record;
    return manifest_of(records);
  };
  for (const char* record : {"1", "[]", R"({"crc32c":"0000000a"})", R"({"bytes":-1,"crc32c":"0000000a"})",
                             R"({"bytes":1.0,"crc32c":"0000000a"})", R"({"bytes":"1","crc32c":"0000000a"})",
                             R"({"bytes":18446744073709551616,"crc32c":"0000000a"})"}) {
    INFO(record);
    CHECK(manifest_refusal(with(record)) == "m: has no size for state.json");
  }
  CHECK(manifest_refusal(with(R"({"bytes":1})")) == "m: has no checksum for state.json");
  CHECK(manifest_refusal(with(R"({"bytes":1,"crc32c":10})")) == "m: has no checksum for state.json");
  for (const char* crc : {"", "0000000", "000000000", "0000000g", "g0000000", "000 0000", "-0000001", "0x00000a"}) {
    INFO(crc);
    CHECK(manifest_refusal(with(std::string(R"({"bytes":1,"crc32c":")") + crc + "\"}")) ==
          "m: has no checksum for state.json");
  }
  CHECK(parsed_manifest(with(R"({"bytes":1,"crc32c":"0000BEEF"})")).at("state.json").crc == 0xbeef);
}

TEST_CASE("only last, best and step-N are names of checkpoints") {
  for (const char* name : {"last", "best", "step-0", "step-12", "step-007"}) CHECK(dp::is_checkpoint_name(name));
  for (const char* name :
       {"", "lasts", "Last", "step", "step-", "step-x", "step-1x", "step--1", "rewound-last", ".last"})
    CHECK_FALSE(dp::is_checkpoint_name(name));
}

TEST_CASE("the name of a leftover gives its checkpoint and its process") {
  struct {
    const char *name, *base;
    pid_t owner;
  } const rows[] = {{".last.tmp-12-0", "last", 12},
                    {".best.old-7-34", "best", 7},
                    {".step-10.tmp-2147483647-1", "step-10", 2147483647}};
  for (const auto& row : rows) {
    INFO(row.name);
    const auto leftover = dp::parse_leftover(row.name);
    REQUIRE(leftover.has_value());
    CHECK(leftover->base == row.base);
    CHECK(leftover->owner == row.owner);
  }
  for (const char* name : {"",
                           ".",
                           "last",
                           ".last",
                           ".last.",
                           ".last.tmp",
                           ".last.tmp-",
                           ".last.tmp-12",
                           ".last.tmp-12-",
                           ".last.tmp--0",
                           ".last.tmp-0-0",
                           ".last.tmp-2147483648-0",
                           ".last.tmp-1x-0",
                           ".last.tmp-1-x",
                           ".last.tmp-1-2-3",
                           ".last.tmp12-0",
                           ".last.bak-12-0",
                           ".other.tmp-12-0",
                           "..tmp-12-0",
                           "last.tmp-12-0"}) {
    INFO(name);
    CHECK_FALSE(dp::parse_leftover(name).has_value());
  }
}

TEST_CASE("is_dead_or_own() is false for running processes, also without permission to signal them") {
  CHECK(dp::is_dead_or_own(::getpid()));
  CHECK_FALSE(dp::is_dead_or_own(::getppid()));
  CHECK_FALSE(dp::is_dead_or_own(1));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  CHECK(dp::is_dead_or_own(child));
}

TEST_CASE("the files of a checkpoint state their format, and the optimizer and the updates where there are any") {
  UnsyncedOps unsynced;
  const ScopedFileOps scope(unsynced);
  const ScratchFolder scratch;
  const auto metadata_of = [&](const std::string& name) {
    std::map<std::string, std::string> metadata;
    dp::read_safetensors(scratch / "last/" + name, &metadata);
    return metadata;
  };
  using Map = std::map<std::string, std::string>;
  dp::Checkpoint checkpoint = checkpoint_at(5);
  checkpoint.average = checkpoint.weights;
  checkpoint.average_updates = 3;
  dp::save_checkpoint(scratch / "last", checkpoint);
  CHECK(metadata_of("model.safetensors") == Map{{"format", "pt"}});
  CHECK(metadata_of("optimizer.safetensors") == Map{{"format", "pt"}, {"optimizer", "sgd"}, {"updates", "5"}});
  CHECK(metadata_of("ema.safetensors") == Map{{"format", "pt"}, {"updates", "3"}});
  const dp::Checkpoint loaded = dp::load_checkpoint(scratch / "last");
  CHECK(loaded.average.size() == 2);
  CHECK(loaded.average_updates == 3);
  checkpoint.optimizer = {};
  checkpoint.average.clear();
  dp::save_checkpoint(scratch / "last", checkpoint);
  CHECK(metadata_of("optimizer.safetensors") == Map{{"format", "pt"}});
  CHECK_FALSE(std::filesystem::exists(scratch / "last/ema.safetensors"));
  CHECK(dp::load_checkpoint(scratch / "last").average.empty());
}
