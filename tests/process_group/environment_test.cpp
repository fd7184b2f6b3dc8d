// Tests how a rank reads the environment variables that torchrun sets.
#include <cstdlib>
#include <utility>
#include <vector>

#include "dp/process_group.h"
#include "support/catch.h"

using namespace dp;

namespace {

using Variables = std::vector<std::pair<const char*, const char*>>;

std::optional<ProcessGroupOptions> with(const Variables& variables) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DP_TOKEN", "DP_LISTENER",
                           "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"})
    ::unsetenv(name);
  for (const auto& [name, value] : variables) ::setenv(name, value, 1);
  return process_group_from_environment();
}

// The error for these variables, which must be one of usage.
std::string error_with(const Variables& variables) {
  try {
    with(variables);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    return error.what();
  }
  return "no error";
}

// Rank 0 of 2 at a local address, with these variables set in addition, or instead.
Variables local(const Variables& more) {
  Variables all{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

TEST_CASE("process group: the environment of torchrun is read, and errors in it are named") {
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
  CHECK(torchrun->address == "10.0.0.1");
  CHECK_THROWS_WITH(with({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), Catch::Matchers::Contains("RANK is '2'"));
  CHECK_THROWS_WITH(with({{"RANK", "0"}, {"WORLD_SIZE", "two"}}), Catch::Matchers::Contains("WORLD_SIZE is 'two'"));
  CHECK_THROWS_WITH(with({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), Catch::Matchers::Contains("MASTER_ADDR is not"));
  CHECK_THROWS_WITH(with({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}}),
                    Catch::Matchers::Contains("DP_TOKEN"));
  with({});
}

TEST_CASE("process group: every variable of the environment sets its option, within its limits") {
  CHECK_FALSE(with({{"WORLD_SIZE", "1"}, {"MASTER_ADDR", "10.0.0.1"}}));
  const auto alone = with({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "ignored"}});
  REQUIRE(alone);
  CHECK(alone->rank == 0);
  CHECK(alone->size == 1);
  CHECK(alone->address == "127.0.0.1");
  CHECK(alone->port == 0);
  CHECK(alone->token.empty());
  CHECK(alone->listener == -1);
  CHECK_FALSE(alone->mpi);
  const auto addressed = with({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "10.0.0.1"}});
  REQUIRE(addressed);  // one rank needs no secret
  CHECK(addressed->address == "10.0.0.1");
  const auto full = with({{"RANK", "4095"},
                          {"WORLD_SIZE", "4096"},
                          {"MASTER_ADDR", "node-7"},
                          {"MASTER_PORT", "65534"},
                          {"DP_TOKEN", "secret"},
                          {"TORCHELASTIC_RUN_ID", "17"},
                          {"DP_LISTENER", "9"}});
  REQUIRE(full);
  CHECK(full->rank == 4095);
  CHECK(full->size == 4096);
  CHECK(full->address == "node-7");
  CHECK(full->port == 65534);
  CHECK(full->token == "secret");  // before the run id
  CHECK(full->listener == -1);     // only rank 0 listens
  const auto first = with(local({{"MASTER_PORT", "1"},
                                 {"DP_LISTENER", "1048576"},
                                 {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                 {"TORCHELASTIC_RUN_ID", "none"}}));
  REQUIRE(first);
  CHECK(first->port == 1);
  CHECK(first->listener == 1048576);
  CHECK(first->token.empty());
  for (const char* address : {"127.0.0.1", "localhost", "::1"}) {
    const auto here = with(local({{"MASTER_ADDR", address}}));
    REQUIRE(here);
    CHECK(here->address == address);
  }
  with({});
}

TEST_CASE("process group: an error in the environment names the variable, its value and what is allowed") {
  CHECK(error_with({{"WORLD_SIZE", "2"}}) == "WORLD_SIZE is '2', but RANK is not set; set both, or neither");
  const auto number = [](const char* name, const char* value, const std::string& range) {
    INFO(name << "='" << value << "'");
    CHECK(error_with(local({{name, value}})) ==
          "RANK is set, but " + std::string(name) + " is '" + value + "', not a number from " + range);
  };
  for (const char* size : {"0", "4097", "", "two", "2 ", "99999999999"}) number("WORLD_SIZE", size, "1 to 4096");
  for (const char* rank : {"2", "-1", "1x", " 1"}) number("RANK", rank, "0 to 1");
  for (const char* port : {"0", "65535", "", "29500a"}) number("MASTER_PORT", port, "1 to 65534");
  for (const char* listener : {"-1", "1048577", "x"}) number("DP_LISTENER", listener, "0 to 1048576");
  CHECK(error_with(local({{"MASTER_ADDR", ""}})) ==
        "RANK is set, but MASTER_ADDR is not; set it to the address of rank 0");
  const std::string no_secret =
      "MASTER_ADDR is '10.0.0.1', which other hosts can reach: a shared secret is required; set DP_TOKEN to the same "
      "text for every rank";
  CHECK(error_with(local({{"MASTER_ADDR", "10.0.0.1"}})) == no_secret);
  CHECK(error_with(local({{"MASTER_ADDR", "10.0.0.1"}, {"TORCHELASTIC_RUN_ID", "none"}})) == no_secret);
  with({});
}

TEST_CASE("process group: each launcher of MPI is recognised by its variable") {
  const std::vector<const char*> names{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};
  for (const char* name : names) ::unsetenv(name);
  CHECK_FALSE(started_by_mpi());
  CHECK_FALSE(process_group_from_mpi());
  for (const char* name : names) {
    INFO(name);
    ::setenv(name, "0", 1);
    CHECK(started_by_mpi());
    ::setenv(name, "", 1);
    CHECK_FALSE(started_by_mpi());
    ::unsetenv(name);
  }
}
