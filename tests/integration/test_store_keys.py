"""Keys of an S3 service that do not fit are the operator's: they are found before any node works."""

from tests.kit.fleet import machine
from tests.kit.planted_secrets import plant
from tests.kit.s3_service import S3Service


def test_a_wrong_read_only_key_ends_prepare_with_its_name(new_fleet, tmp_path):
    access, secret, wrong = "WRITER7", plant("writer"), plant("wrong")
    nodes = {"node-1": machine(tmp_path / "m1", "1" * 32)}
    with S3Service(tmp_path, (access, secret)) as service:
        settings = {
            "gpuval_s3_endpoint": service.endpoint,
            "gpuval_create_bucket": True,
            "gpuval_s3_access_key": access,
            "gpuval_s3_secret_key": secret,
            "gpuval_s3_read_access_key": access,
            "gpuval_s3_read_secret_key": wrong,
        }
        with new_fleet("keys", nodes=nodes, settings=settings) as fleet:
            done = fleet.play("gpuval.fleet.prepare")
    assert done.code != 0, done
    assert "the read-only key cannot list models/" in " ".join(done.output.split())
    assert secret not in done.output
    assert wrong not in done.output
