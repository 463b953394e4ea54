"""A local Ray of this run alone, shared by the sides that need one."""

import logging
import os
import shutil
import tempfile

_folder: str | None = None
_users = 0
ATTEMPTS = 3


def start():
    """Starts Ray, unless it runs. Its files lie in a folder that goes with it."""
    global _users
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    # It gives its processes 30 s to come up, which is not enough on a machine that builds something at the same time.
    for attempt in range(ATTEMPTS):
        if ray.is_initialized():
            break
        try:
            _init(ray)
        except Exception:
            ray.shutdown()
            shutil.rmtree(_folder, ignore_errors=True)
            if attempt == ATTEMPTS - 1:
                raise
    _users += 1
    return ray


def _init(ray) -> None:
    global _folder
    _folder = tempfile.mkdtemp(prefix="tq-ray-")
    ray.init(
        # TransferQueue hangs when its actors find no CPU to reserve; more are named than this machine may have.
        num_cpus=8,
        object_store_memory=1 << 30,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
        _temp_dir=_folder,
        runtime_env={"env_vars": {"PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}},
    )


def stop() -> None:
    """Ends Ray when its last user has stopped it."""
    global _users
    _users -= 1
    if _users == 0:
        import ray

        ray.shutdown()
        shutil.rmtree(_folder, ignore_errors=True)
