// Runs dp_train --engine ddp as a user does.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"
#include "support/free_port.h"
#include "support/patience.h"

namespace dp::test {

// The word after this flag.
inline std::string& value_of(Words& arguments, const std::string& flag) {
  return *(std::find(arguments.begin(), arguments.end(), flag) + 1);
}

// A few steps on a tiny data set; `run` is the output folder. The timeout is long enough for a busy machine.
inline Words short_run(const std::string& run) {
  return {"--engine",
          "ddp",
          "--dataset",
          "mnist",
          "--data-path",
          ".",
          "--model",
          "mnist_convnet",
          "-b",
          "12",
          "--epochs",
          "100",
          "--max-steps",
          "6",
          "--no-dropout",
          "--deterministic",
          "--quiet",
          "--timeout",
          "600",
          "--output-dir",
          run};
}

// The same until it is interrupted. It logs each epoch.
inline Words endless_run(const std::string& run) {
  Words arguments = short_run(run);
  value_of(arguments, "--max-steps") = value_of(arguments, "--epochs") = "1000000";
  std::erase(arguments, "--quiet");
  return arguments;
}

inline nlohmann::json summary_in(const std::string& run) {
  std::ifstream in(run + "/summary.json");
  return nlohmann::json::parse(in);
}

inline Words rank_variables(int rank, int size, const std::string& port, const std::string& token = "secret") {
  return {"RANK=" + std::to_string(rank),
          "WORLD_SIZE=" + std::to_string(size),
          "LOCAL_RANK=" + std::to_string(rank),
          "MASTER_ADDR=127.0.0.1",
          "MASTER_PORT=" + port,
          "DP_TOKEN=" + token};
}

// Empty if mpirun or the MPI plugin is not here.
inline std::string mpirun_program() {
  if (!std::filesystem::exists(std::filesystem::path(DP_TRAIN_PATH).parent_path() / "libdp_mpi.so")) return "";
  for (const char* path : {"/usr/bin/mpirun", "/usr/local/bin/mpirun"})
    if (std::filesystem::exists(path)) return path;
  return "";
}

// Open MPI refuses root and more ranks than cores unless it is told otherwise.
inline Words mpi_environment() {
  return {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1",
          "OMPI_MCA_btl_vader_single_copy_mechanism=none"};
}

// The processes whose command line contains `text`.
inline std::vector<pid_t> processes_with(const std::string& text) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (read_text(entry.path() / "cmdline").find(text) != std::string::npos)
      found.push_back(static_cast<pid_t>(std::stoi(name)));
  }
  return found;
}

// Whether a rank has joined rank 0, which listens on this port of 127.0.0.1. With `unread`: whether
// it has also sent something that rank 0 has not read yet.
inline bool is_connected(int port, bool unread = false) {
  char end[16];
  std::snprintf(end, sizeof end, ":%04X", static_cast<unsigned>(port));
  std::ifstream table("/proc/net/tcp");
  std::string number, local, remote, state, queues, rest;
  std::getline(table, rest);  // the names of the columns
  while (table >> number >> local >> remote >> state >> queues && std::getline(table, rest))
    if (local.ends_with(end) && state == "01" && !(unread && queues.ends_with(":00000000"))) return true;
  return false;
}

// Whether no such process is left, at most kPatience from now.
inline bool all_gone(const std::string& text) {
  return becomes([&] { return processes_with(text).empty(); });
}

}  // namespace dp::test
