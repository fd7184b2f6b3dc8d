// Which images a run trains on.
#pragma once

#include <dp/dataset.h>
#include <dp/shape.h>
#include <string>

#include "arguments.h"

namespace dp_train {

struct ImageFormat {
  dp::Shape shape;  // (C,H,W)
  std::int64_t classes;
};

// Of the data set of that name, without a look at its files. dp::Error(usage) for an unknown name, or for --input, --classes or
// --images with a data set that has its own.
ImageFormat image_format(const Arguments& arguments, const std::string& dataset);

// dp::Error(usage) as above, dp::Error(data) for files that are missing or damaged.
dp::DatasetPair open_images(const Arguments& arguments, const std::string& dataset);

}  // namespace dp_train
