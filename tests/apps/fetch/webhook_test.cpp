// dp_train --webhook.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/fetch/local_server.h"
#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;
using Json = nlohmann::json;

const Words kNoProxy{"no_proxy=127.0.0.1"};

Words run_with(const std::string& address) {
  return {"--dataset", "mnist", "--data-path", ".",        "--model", "mlp",          "-b",  "16",        "--cpu",
          "1",         "-p",    "1",           "--epochs", "1",       "--output-dir", "run", "--webhook", address};
}

TEST_CASE("the webhook gets one JSON document, whatever ends the run") {
  struct Case {
    Words more, variables;
    int code;
    Json fields;
  };
  for (const Case& one :
       {Case{{}, {}, 0, {{"status", "complete"}, {"exit_code", 0}, {"step", 4}, {"checkpoint_step", 4}}},
        Case{{}, {"DP_FAIL=nan:forward:step2"}, 5, {{"status", "failed"}, {"exit_code", 5}, {"step", 2}}},
        Case{{"--max-restarts", "1"},
             {"DP_FAIL=segv:forward:step2", "DP_RESTART_PAUSE=0"},
             139,
             {{"status", "failed"}, {"exit_code", 139}}}}) {
    const LocalServer server([&](const Request&) { return Reply{"taken"}; });
    const TemporaryFolder temp;
    write_tiny_mnist(temp.path());
    const Outcome outcome =
        Program(run_with(server.address() + "T0/key") + one.more, temp.path(), kNoProxy + one.variables).wait();
    INFO(outcome.err);
    CHECK(outcome.code == one.code);
    CHECK(outcome.out.find("taken") == std::string::npos);
    REQUIRE(server.requests().size() == 1);
    const Request request = server.requests().front();
    CHECK_THAT(request.head, Catch::StartsWith("POST /T0/key HTTP/") && Catch::Contains("dp_train/") &&
                                 Catch::Contains("Content-Type: application/json"));
    const Json json = Json::parse(request.body);
    CHECK(json["run"] == fs::canonical(temp.path()).string() + "/run");
    CHECK_THAT(json["text"].get<std::string>(),
               Catch::StartsWith("run: " + json["status"].get<std::string>() + ", exit status "));
    for (const auto& [name, value] : one.fields.items()) CHECK(json.value(name, Json()) == value);
  }
}

TEST_CASE("a webhook that fails is one warning without its address, and nothing records the address") {
  struct Row {
    std::string address;
    Words variables;
    std::string warning;
  };
  const LocalServer server([&](const Request& request) {
    if (request.path.starts_with("/moved")) return Reply{"", "302 Found", "Location: http://127.0.0.1:9/secret\r\n"};
    if (request.path.starts_with("/stalls")) return Reply{.body = "x", .sent = 0, .stalls = true};
    return Reply{"secret", "500 Internal Server Error"};
  });
  const std::string place = server.address().substr(7);
  for (const Row& row :
       {Row{server.address() + "services/secret", kNoProxy, "500"},
        Row{"http://me:secret@" + place + "?key=secret", kNoProxy, "500"},
        Row{server.address() + "moved/secret", kNoProxy, "the server answered 302, a redirect"},
        Row{server.address() + "stalls/secret", kNoProxy + Words{"DP_ON_END_SECONDS=1"}, "ended after 1 s"},
        Row{"http://me:secret@127.0.0.1:9/secret", kNoProxy, "127.0.0.1"},
        Row{"http://me:secret@127.0.0.1:99999/secret", kNoProxy, ""},
        Row{"http://127.0.0.1:9/", {"http_proxy=http://me:secret@127.0.0.1:9/"}, ""}}) {
    const TemporaryFolder temp;
    write_tiny_mnist(temp.path());
    const Outcome outcome = Program(run_with(row.address) + Words{"--quiet"}, temp.path(), row.variables).wait();
    INFO(row.address << ": " << outcome.err);
    CHECK(outcome.code == 0);
    CHECK_THAT(outcome.err, Catch::StartsWith("dp_train: warning: --webhook: ") && Catch::Contains(row.warning));
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
    CHECK((outcome.out + outcome.err).find("secret") == std::string::npos);
    for (const auto& file : fs::recursive_directory_iterator(temp / "run"))
      if (file.is_regular_file()) CHECK(read_text(file.path()).find("secret") == std::string::npos);
  }
}

TEST_CASE("a webhook is refused before the run if it cannot work") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  for (const std::string address : {"secret", "ftp://secret/", "http://a/sec ret"}) {
    const Outcome outcome = run_dp_train(run_with(address), temp.path());
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.err, Catch::StartsWith("dp_train: error: --webhook: the address ") && !Catch::Contains("sec"));
  }
  fs::create_directory(temp / "bin");
  fs::copy_file(DP_TRAIN_PATH, temp / "bin/dp_train");
  const Outcome without =
      Program(run_with("http://a/"), temp.path(), {}, {"/bin/sh", "-c", "shift; exec ./bin/dp_train \"$@\"", "sh"})
          .wait();
  CHECK(without.code == 2);
  CHECK_THAT(without.err, Catch::Contains("--webhook: the program dp_fetch is not in "));
  CHECK_FALSE(fs::exists(temp / "run"));
}

}  // namespace
