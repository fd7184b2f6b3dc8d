// Everything an embedder needs.
#pragma once

#include "dp/checkpoint.h"
#include "dp/data_parallel.h"
#include "dp/dataset.h"
#include "dp/device.h"
#include "dp/error.h"
#include "dp/launch.h"
#include "dp/loader.h"
#include "dp/loss_scale.h"
#include "dp/model.h"
#include "dp/models.h"
#include "dp/optimizer.h"
#include "dp/random.h"
#include "dp/shape.h"
#include "dp/tensor.h"
#include "dp/trainer.h"
#include "dp/world.h"
