#include "engine/checkpoint/data_identity.h"

#include "engine/base/fault.h"
#include "engine/checkpoint/small_json.h"

namespace dp {
namespace {

const nlohmann::json& list_in(const nlohmann::json& json, const char* key, const std::string& path) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array()) throw_data(path, std::string("'") + key + "' is not a list");
  return *found;
}

std::vector<std::string> names_in(const nlohmann::json& json, const char* key, const std::string& path) {
  std::vector<std::string> names;
  for (const nlohmann::json& name : list_in(json, key, path)) {
    if (!name.is_string()) throw_data(path, std::string("'") + key + "' has an entry that is not a string");
    names.push_back(name.get<std::string>());
  }
  return names;
}

std::vector<std::int64_t> counts_in(const nlohmann::json& json, const char* key, const std::string& path) {
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 53;
  std::vector<std::int64_t> counts;
  for (const nlohmann::json& count : list_in(json, key, path)) {
    if (!count.is_number_unsigned() || count.get<std::uint64_t>() >= kLimit)
      throw_data(path, std::string("'") + key + "' has an entry that is not a count below 2^53");
    counts.push_back(count.get<std::int64_t>());
  }
  return counts;
}

std::string text_in(const nlohmann::json& json, const char* key, const std::string& path) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) throw_data(path, std::string("'") + key + "' is not a string");
  return found->get<std::string>();
}

}  // namespace

nlohmann::ordered_json to_json(const DataIdentity& data) {
  return {{"classes", data.classes},
          {"train_counts", data.train_counts},
          {"test_counts", data.test_counts},
          {"train_fingerprint", data.train_fingerprint},
          {"test_fingerprint", data.test_fingerprint}};
}

DataIdentity read_data_identity(const nlohmann::json& json, const std::string& path) {
  if (!json.is_object()) throw_data(path, "is not a JSON object");
  return {names_in(json, "classes", path), counts_in(json, "train_counts", path), counts_in(json, "test_counts", path),
          text_in(json, "train_fingerprint", path), text_in(json, "test_fingerprint", path)};
}

std::vector<std::string> classes_in(const std::map<std::string, std::string>& metadata, const std::string& path) {
  const auto found = metadata.find(kClassesKey);
  if (found == metadata.end()) return {};
  const std::string where = path + ": __metadata__";
  // parse_small_json() reads objects.
  return names_in(parse_small_json("{\"classes\":" + found->second + "}", where), "classes", where);
}

}  // namespace dp
