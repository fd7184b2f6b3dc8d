// Tests how a rank reads the environment variables that torchrun sets.
#include <cstdlib>
#include <utility>
#include <vector>

#include "dp/process_group.h"
#include "support/catch.h"

using namespace dp;

TEST_CASE("process group: the environment of torchrun is read, and errors in it are named") {
  const auto with = [](std::vector<std::pair<const char*, const char*>> variables) {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DP_TOKEN", "DP_LISTENER",
                             "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"})
      ::unsetenv(name);
    for (const auto& [name, value] : variables) ::setenv(name, value, 1);
    return process_group_from_environment();
  };
  CHECK_FALSE(with({}));
  const auto plain = with({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}});
  REQUIRE(plain);
  CHECK(plain->rank == 1);
  CHECK(plain->size == 2);
  CHECK(plain->port == 29500);
  const auto torchrun = with({{"RANK", "0"},
                              {"WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "10.0.0.1"},
                              {"MASTER_PORT", "29500"},
                              {"TORCHELASTIC_RUN_ID", "17"},
                              {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  REQUIRE(torchrun);
  CHECK(torchrun->port == 29501);
  CHECK(torchrun->token == "17");
  CHECK_THROWS_WITH(with({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), Catch::Matchers::Contains("RANK is '2'"));
  CHECK_THROWS_WITH(with({{"RANK", "0"}, {"WORLD_SIZE", "two"}}), Catch::Matchers::Contains("WORLD_SIZE is 'two'"));
  CHECK_THROWS_WITH(with({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), Catch::Matchers::Contains("MASTER_ADDR is not"));
  CHECK_THROWS_WITH(with({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}}),
                    Catch::Matchers::Contains("DP_TOKEN"));
  with({});
}
