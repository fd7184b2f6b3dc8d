// Data sets for dp_train fetch. Paths of the programs installed with dp_train.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dp_train {

struct RemoteFile {
  std::string name;
  std::uint64_t bytes;
  std::string checksum;  // lower-case hex: 64 digits of SHA-256 or 32 of MD5
};

struct UnpackedFile {
  std::string name;
  std::uint64_t bytes;
};

struct Source {
  std::string dataset;
  std::vector<std::string> mirrors;  // base addresses, tried in this order
  std::string folder;                // of the files, below the data path
  std::vector<RemoteFile> files;     // gzip; with `unpacked`, one .tar.gz archive that contains `folder`
  std::vector<UnpackedFile> unpacked{};
};

const std::vector<Source>& sources();
const Source& source(const std::string& dataset);  // must exist

struct FetchOptions {
  std::string data_path;
  std::optional<std::string> mirror{};  // used instead of the source's mirrors
  bool quiet = false;                   // prints warnings only
  bool progress = true;                 // a line that is rewritten, if stdout is a terminal
  int patience = 30;                    // seconds, see Download
};

// Looks for a program in this program's folder, then in ../lib/dp. Returns its path, or an empty text.
std::string program_beside(const std::string& name);

// The path of dp_fetch, which also sends --webhook. Error(usage) if this build has none. The message begins with `user`
// and ends with `instead`.
std::string fetch_program(const std::string& user, const std::string& instead = "");

// Error(usage) unless the address begins with http:// or https://. It may contain a password, so the message leaves it
// out.
void check_address(const std::string& option, const std::string& address);

// Replaces this process by dp_fetch. Error(usage) if this build has none.
[[noreturn]] void start_fetch(const Source& source, const FetchOptions& options);

}  // namespace dp_train
