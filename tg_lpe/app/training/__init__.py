"""Train and pretrain models and encoders: settings, tasks, the training loop, run folders."""

from tg_lpe.app.training.build import build_model, task_for
from tg_lpe.app.training.config import KernelPretrainConfig, LoopConfig, PretrainConfig, TrainConfig, default_config
from tg_lpe.app.training.joint import JointTraining, check_training, train
from tg_lpe.app.training.paired import PairedDifference, figures_by_part, paired_difference
from tg_lpe.app.training.pretrain import EigenvectorPretraining, KernelPretraining
from tg_lpe.app.training.readouts import principal_readouts
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.tasks import TASKS, Task, make_task, register_task

__all__ = [
    "TASKS",
    "EigenvectorPretraining",
    "JointTraining",
    "KernelPretrainConfig",
    "KernelPretraining",
    "LoopConfig",
    "PairedDifference",
    "PretrainConfig",
    "RunFolder",
    "Task",
    "TrainConfig",
    "build_model",
    "check_training",
    "default_config",
    "figures_by_part",
    "make_task",
    "paired_difference",
    "principal_readouts",
    "register_task",
    "task_for",
    "train",
]
