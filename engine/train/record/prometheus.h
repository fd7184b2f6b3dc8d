// metrics.prom: the latest figures of a run as text for Prometheus.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <string>

namespace dp {

class PrometheusFile {
 public:
  PrometheusFile() = default;  // writes nothing
  explicit PrometheusFile(const std::string& run_folder);

  // These replace the file. Readers see the old or the new text; it is not synced to the disk. Error(io)

  void add(const nlohmann::ordered_json& record);  // the numbers of a line of metrics.jsonl
  void saved(std::int64_t seconds);                // time of the last checkpoint, since 1970

  std::string text() const;

 private:
  void write() const;
  void set(const std::string& name, const std::string& labels, double value);

  std::string path_, run_;
  std::map<std::string, std::map<std::string, double>> values_;  // by name, then by labels
};

}  // namespace dp
