// dp_train: trains a network from the command line.
#include <dp/train_main.h>

int main(int argc, char** argv) { return dp::train_main(argc, argv); }
