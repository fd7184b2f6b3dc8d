"""Prints the scalars and options of a run's event files as JSON, read by TensorBoard. Exit status 4: not installed."""
import json
import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata
except ImportError:
    sys.exit(4)

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0}, purge_orphaned_data=True).Reload()
scalars = {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
options = metadata.parse_session_start_info_plugin_data(content).hparams
print(json.dumps({"scalars": scalars, "options": {
    name: getattr(value, value.WhichOneof("kind")) for name, value in options.items()}}))
