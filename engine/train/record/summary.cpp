// summary.json.
#include <algorithm>

#include "engine/base/text.h"

#include "dp/trainer.h"

namespace dp {

std::string to_json(const RunSummary& summary) {
  nlohmann::ordered_json json;
  json["model"] = summary.model;
  json["dataset"] = summary.dataset;
  json["engine"] = summary.engine;
  json["devices"] = summary.devices;
  json["communicator"] = summary.communicator.what;
  json["communicator_reason"] = summary.communicator.reason;
  json["graphs"] = summary.graphs.what;
  json["graphs_reason"] = summary.graphs.reason;
  if (!summary.pipeline.empty()) json["pipeline"] = summary.pipeline;
  json["global_batch"] = summary.global_batch;
  json["epochs"] = summary.epochs;
  json["steps"] = summary.steps;
  json["skipped_steps"] = summary.skipped_steps;
  json["seconds_train"] = summary.seconds_train;
  json["images_per_second"] = summary.images_per_second;
  json["train_loss"] = summary.train_loss;
  json["test_loss"] = summary.test_loss;
  json["top1"] = summary.top1;
  json["top5"] = summary.top5;
  json["weights_sha256"] = summary.weights_sha256;
  json["checkpoint"] = summary.checkpoint;
  json["interrupted"] = summary.interrupted;
  json["end"] = summary.end;
  if (summary.bad_images) {
    constexpr std::size_t kListed = 100;
    json["bad_images"] = summary.bad_images->size();
    json["bad_image_list"] = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < std::min(summary.bad_images->size(), kListed); ++i)
      json["bad_image_list"].push_back((*summary.bad_images)[i]);
  }
  for (const LayerTime& layer : summary.layers)
    json["layers"].push_back({{"name", layer.name},
                              {"implementation", layer.implementation},
                              {"seconds", layer.seconds},
                              {"floor_seconds", layer.floor_seconds}});
  return json_line(json);
}

}  // namespace dp
