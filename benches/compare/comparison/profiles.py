"""What is fetched, over which link, by whom: one profile a question of the comparison."""

from dataclasses import dataclass, field

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

SMALLEST_SHARD = 64 * KIB


@dataclass(frozen=True)
class FileSpec:
    """One file of a repository: an LFS file is served by the CDN, any other by the hub itself."""

    path: str
    size: int
    lfs: bool


@dataclass(frozen=True)
class Profile:
    """A repository behind a link. `content` names the files, so that profiles can share them."""

    name: str
    title: str
    content: str
    shards: int = 0
    shard_bytes: int = 0
    small_files: int = 0
    small_bytes: int = 0
    pace: int | None = None
    rtt_ms: int = 0
    tls: bool = False
    interrupted: bool = False
    peers: tuple[str, ...] | None = None
    why_these_peers: str = ""
    extra_rows: tuple[str, ...] = field(default=())

    def files(self, scale: float) -> list[FileSpec]:
        """The repository's files but for the index, which is made from the shards."""
        specs = []
        size = self.shard_bytes if scale == 1 else max(SMALLEST_SHARD, int(self.shard_bytes * scale))
        for n in range(1, self.shards + 1):
            specs.append(FileSpec(f"model-{n:05}-of-{self.shards:06}.safetensors", size, True))
        if self.shards:
            specs += MODEL_FILES
        for n in range(self.small_files):
            specs.append(FileSpec(f"data/{n // 100:02}/part-{n:05}.json", self.small_bytes, False))
        return specs


# What stands beside the shards of a model, in the sizes they usually have.
MODEL_FILES = [
    FileSpec(path, size, False)
    for path, size in [
        ("README.md", 12_000),
        ("LICENSE", 11_400),
        ("config.json", 4_800),
        ("generation_config.json", 250),
        ("hf_quant_config.json", 900),
        ("preprocessor_config.json", 700),
        ("special_tokens_map.json", 1_100),
        ("tokenizer_config.json", 3_700),
        ("tokenizer.json", 2_300_000),
        ("vocab.json", 800_000),
        ("merges.txt", 450_000),
        ("chat_template.jinja", 6_200),
        ("configuration.py", 5_100),
        ("modeling.py", 84_000),
        ("processing.py", 21_000),
        ("media_utils.py", 9_300),
        ("docs/deploy.md", 7_700),
        ("docs/usage.md", 5_500),
        ("figures/overview.svg", 61_000),
        ("requirements.txt", 120),
    ]
]

PROFILES = {
    profile.name: profile
    for profile in [
        Profile("kimi16", "119 shards of 16 MiB", "kimi16", shards=119, shard_bytes=16 * MIB),
        Profile("big512", "8 shards of 512 MiB", "big512", shards=8, shard_bytes=512 * MIB),
        Profile("many2000", "2,000 files of 16 KiB, none of them LFS", "many2000", small_files=2000,
                small_bytes=16 * KIB),
        Profile("paced20", "12 shards of 128 MiB, each connection held to 20 MB/s", "shards128", shards=12,
                shard_bytes=128 * MIB, pace=20_000_000, extra_rows=("muster-64",)),
        Profile("rtt80", "12 shards of 64 MiB, 80 ms round trip", "shards64", shards=12, shard_bytes=64 * MIB,
                rtt_ms=80),
        Profile("tls", "119 shards of 16 MiB over TLS", "kimi16", shards=119, shard_bytes=16 * MIB, tls=True),
        Profile("one8g", "one file of 8 GiB, each connection held to 20 MB/s", "one8g", shards=1,
                shard_bytes=8 * GIB, pace=20_000_000, peers=("muster", "aria2c", "rclone"), extra_rows=("muster-64",),
                why_these_peers="one connection of 20 MB/s needs 7 minutes for the file, so only those that split it"),
        Profile("resume", "119 shards of 16 MiB, killed at half and started again", "kimi16", shards=119,
                shard_bytes=16 * MIB, interrupted=True, peers=("muster", "hf", "aria2c", "rclone"),
                why_these_peers="hf-hub takes a file that exists for a complete one, curl ends in errors on complete files"),
        Profile("smoke", "6 shards of 1 MiB and 30 small files: proves the runner, measures nothing", "smoke", shards=6,
                shard_bytes=MIB, small_files=30, small_bytes=4 * KIB, peers=("muster", "curl")),
    ]
}

DEFAULT_PROFILES = [name for name in PROFILES if name != "smoke"]
