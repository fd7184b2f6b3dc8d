// Where data sets are downloaded from.
#pragma once

#include <cstdint>
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

}  // namespace dp_train
