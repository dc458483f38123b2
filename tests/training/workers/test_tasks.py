"""What the launcher plans to start: roles, hosts, variables; and what it refuses."""

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.workers.tasks import hosts, read, tasks


def planned(line):
    return tasks(read([*line.split(), "--", "true"]))


def test_a_local_run_stays_on_this_machine():
    started = planned("-n 2 -s 1")
    assert [str(task) for task in started] == ["scheduler", "server 0", "worker 0", "worker 1"]
    for task in started:
        assert task.host is None and task.neighbours == 2
        assert task.env["DMLC_PS_ROOT_URI"] == task.env["DMLC_NODE_HOST"] == "127.0.0.1"
        assert (task.env["DMLC_NUM_WORKER"], task.env["DMLC_NUM_SERVER"]) == ("2", "1")
        assert task.env["DMLC_ROLE"] == task.role
    assert len({task.env["DMLC_PS_ROOT_PORT"] for task in started}) == 1
    assert [task.env.get("DMLC_WORKER_ID") for task in started] == [None, None, "0", "1"]
    assert sum(task.role == "server" for task in planned("-n 3")) == 3  # by default


def test_workers_go_round_the_hosts(tmp_path, monkeypatch):
    for name in ("MXNET_CPU_WORKER_NTHREADS", "PS_VERBOSE", "SECRET"):
        monkeypatch.setenv(name, "1")
    path = tmp_path / "hosts"
    path.write_text("10.0.0.1  # the first\n\nme@10.0.0.2:2222\n")
    started = planned(f"-n 3 -s 1 -H {path} --host-ip 127.0.0.1 --gpus-per-worker 2")
    where = {str(task): task.env.get("CUDA_VISIBLE_DEVICES") for task in started}
    assert where == {
        "scheduler": None,
        "server 0 on 10.0.0.1": None,
        "worker 0 on 10.0.0.1": "0,1",
        "worker 1 on me@10.0.0.2:2222": "0,1",
        "worker 2 on 10.0.0.1": "2,3",
    }
    assert [task.neighbours for task in started] == [1, 2, 2, 1, 2]
    for task in started:  # other machines get what MXNet reads
        assert task.env["MXNET_CPU_WORKER_NTHREADS"] == task.env["PS_VERBOSE"] == "1"
        assert "SECRET" not in task.env and "DMLC_NODE_HOST" not in task.env
    arguments = started[3].arguments(["train", "a b"], "/work dir")
    assert arguments[0] == "ssh" and arguments[-4:-1] == ["-p", "2222", "me@10.0.0.2"]
    assert arguments[-1].startswith("exec python3 -c ")


def test_variables_for_all_and_for_one_role(monkeypatch):
    monkeypatch.setenv("HERE", "1=2")
    started = planned(
        "-n 1 -s 1 --env HERE --env A=b=c --env-server B:3 --env-worker B=4 --env NONE"
    )
    assert [task.env.get("B") for task in started] == [None, "3", "4"]
    assert {(task.env["HERE"], task.env["A"], task.env["NONE"]) for task in started} == {
        ("1=2", "b=c", "")
    }


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("# nothing\n", "lists no hosts"),
        ("a\nb slots=2\n", "has 'b slots=2' in line 2: expected HOST"),
        ("-lroot\n", "has '-lroot' in line 1"),  # an option of ssh
        ("a:ssh\n", "has 'a:ssh' in line 1"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_bad_hostfile_is_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "hosts"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=sentence):
        hosts(path)


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("-n 1 -H hosts --launcher local", "--launcher local runs everything here"),
        ("-n 1 --launcher ssh", "--launcher ssh needs a hostfile"),
        ("-n 1 -H hosts", "no-such-host.invalid has no address"),
        ("-n 1 -H hosts --host-ip 192.0.2.1", "192.0.2.1 is not an address of this"),
    ],
)
def test_options_that_cannot_be_followed(tmp_path, monkeypatch, line, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("no-such-host.invalid\n")
    with pytest.raises(UsageError, match=sentence):
        planned(line)


def test_a_variable_without_a_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        read("-n 1 --env =x -- true".split())
    assert "expected NAME=VALUE or NAME, got '=x'" in capsys.readouterr().err
