// Opens the images of a run.
#pragma once

#include <dp/dataset.h>
#include <dp/shape.h>
#include <dp/trainer.h>
#include <string>

#include "command.h"

namespace dp_train {

struct ImageFormat {
  dp::Shape shape;  // (C,H,W)
  std::int64_t classes;
};

// Whether the images of this data set are files that are decoded when a batch needs them.
bool decodes_files(const std::string& dataset);

// The format of the data set `dataset`. Reads no file. dp::Error(usage) for an unknown name, or for --input, --classes
// or --images with a data set other than synthetic.
ImageFormat image_format(const Command& command, const std::string& dataset);

// dp::Error(usage) as above. dp::Error(data) for missing or damaged files.
dp::DatasetPair open_images(const Command& command, const std::string& dataset);

// The data with the classes of --resume or --init, for --classes-from data. dp::Error(data) if these lack one.
dp::DatasetPair match_classes(const Command& command, const dp::TrainerOptions& options, const dp::DatasetPair& data);

}  // namespace dp_train
