"""What the workers of a run get from the driver's environment."""

from openrlhf.launch.cluster import worker_environment


def test_workers_get_the_settings_of_agents_and_nobodys_secrets() -> None:
    settings = {"MATH_MAX_TURNS": "5", "SEARCH_CORPUS": "/data", "BFCL_MAX_TURNS": "9", "AGENT_TOOLS": "all"}
    given = worker_environment(settings | {"WANDB_API_KEY": "secret", "PATH": "/bin", "MY_MATH_": "1"})
    assert settings.items() <= given.items()
    assert not given.keys() & {"WANDB_API_KEY", "PATH", "MY_MATH_"}


def test_the_users_value_wins() -> None:
    assert worker_environment({"NCCL_DEBUG": "INFO"})["NCCL_DEBUG"] == "INFO"
    assert worker_environment({})["NCCL_DEBUG"] == "WARN"
