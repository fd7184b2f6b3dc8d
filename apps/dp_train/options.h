// From the command line to the trainer's options.
#pragma once

#include <dp/models.h>
#include <dp/trainer.h>

#include "arguments.h"

namespace dp_train {

// The data set's name: as given, or the model's.
std::string dataset_of(const Arguments& arguments, const dp::models::Recipe& recipe);

// Fills what was not said from the recipe and the data set. dp::Error(usage) for flags that contradict each other.
dp::TrainerOptions trainer_options(const Arguments& arguments, const dp::models::Recipe& recipe,
                                   const std::vector<dp::Device>& devices);

// The run's folder; makes a folder of its own under runs/ when none was named. Empty when the run writes none.
std::string output_folder(const Arguments& arguments);

}  // namespace dp_train
