"""Patterns common to all frameworks' logs: numbers, and the messages of programs that fail."""

import re

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
# Lightning pads numbers without decimals: `nan.0`.
_NOT_FINITE = re.compile(r"([+-]?(?:nan|inf(?:inity)?))(?:\.0*)?", re.IGNORECASE | re.ASCII)

# Characters of a line that are looked at.
_LONGEST = 1000
# How far from the cause are: an error that is logged, a launcher's report of a program, and words of failure without
# a level. A run may survive the first and the last.
_LOGGED, _REPORTS, _WORDS = 1, 3, 4
# The level of a logged message, after times, hosts and ranks. A level decides, even if the text contains other words.
_LEVEL = re.compile(
    r"(?P<mild>\b(?:WARN(?:ING)?|INFO(?!: (?:task|rcu))|DEBUG|NOTICE|TRACE)\b(?![=_-])|[Ww]arning ?:|warnings\.warn\("
    r"|\b[Ll]evel=\W?(?:warn|info|debug)|(?:^|[\[\s])[WID](?:\d{4} [\d:]|[\d :.]{0,30}\w+\.(?:cpp|cc|py):\d)"
    r"|\[NeMo [WID] |\s[EWI] (?:tensorflow|external)/)"
    r"|(?P<grave>\b(?:ERROR|FATAL|CRITICAL|PANIC|SEVERE|BUG)\b(?![=_-]| (?:rate|count))"
    r"|\b[Ll]evel=\W?(?:err|fatal|crit|panic)|(?:^|[\[\s])[EF](?:\d{4} [\d:]|[\d :.]{0,30}\w+\.(?:cpp|cc|py):\d)"
    r"|\[NeMo [EF] |\sF (?:tensorflow|external)/)",
    re.ASCII,
)
# The reason is in the last line of a traceback.
_FAILURE = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|ExceptionGroup)(?:\(\w+\))?(?::\s|\s*$)"
    r"|(?:\w+\.)+(?:Error|Exception): |(?:[a-z_]\w*\.)*(?:exc|errors?|\w*exceptions?)\.[A-Z]\w*(?:\(\w+\))?(?::\s|\s*$)"
    r"|(?:[a-z_]\w*\.)+[A-Z]?\w{0,30}(?:Bad|Broken|Expired|Fail|Timeout|Abort|Invalid|Unsupported|Killed|Missing|NotFound)"
    r"\w{0,30}: |(?:[\w./-]+: )?[A-Z]\w{1,40}NotFound\w{0,9}: |SystemExit: |\s+what\(\): +\S"
    r"|(?:[\w./-]+: )?(?:fatal )?error: "  # argparse, Slurm, compilers, loaders of data
    r"|(?:StopIteration|StopAsyncIteration|GeneratorExit|SystemExit)\s*$"
    r"|Exception: |Exception in thread |Fatal Python error: |(?:CUDA|HIP) out of memory"
    r"|(?:[\w./+-]+: )?(?:terminate called|terminating due to|pure virtual method called|double free)"
    r"|(?:[\w./-]+: )?(?:Memory access fault by GPU|(?:CUDA|HIP|NCCL|RCCL) error\b|HSA_STATUS_ERROR)"
    r"|(?:[\w./-]+: )?error while loading shared libraries|MPI_ABORT was invoked"
    # glibc, as it aborts
    r"|(?:[\w./-]+: )?(?:(?:free|malloc|realloc|munmap_chunk|malloc_consolidate)\(\): \w"
    r"|corrupted (?:size|double-linked)|\*\*\* (?:stack smashing|buffer overflow|glibc) detected"
    r"|.{1,300}[]:] Assertion .{1,300} failed)"  # of C, and of a kernel on a GPU
    r"|\[[\w.-]+:\d+\] \*\*\* An error occurred in MPI_|mpirun noticed that process |(?:docker: )?Error response "
    r"|Assertion failed: |Exception raised from |DataLoader worker \(pid|(?:Failed: )?Cuda error "
    r"|(?:[\w./-]+: )?(?:line \d+: +)?(?:\d+ )?"  # a shell, of the signal that ended a program
    r"(?:Segmentation fault|Bus error|Illegal instruction|Floating point exception|[Kk]illed|Aborted|Terminated|Hangup"
    r"|Alarm clock|User defined signal \d|Bad system call|Virtual timer expired)(?: +\(core dumped\)|\s*$|\s{2})",
    re.ASCII,
)
# A signal, the kernel's killer of processes, or a library's code, anywhere in a line.
_KILLED = re.compile(
    r"\bSIG(?:SEGV|BUS|ABRT|ILL|FPE|KILL)\b|Segmentation fault|Caught signal \d|\*\*\* Process received signal"
    r"|oom[-_]kill|OOMKilled|\(core dumped\)|\bdumped core|: Killed process \d|\bsegfault at |\btrap \w+(?: \w+)* ip:"
    r"|NVRM: (?:Xid \(|nvAssert)|detected stalls?\b|self-detected stall|\bOops: |\bend trace\b"
    r"|\b(?i:(?:soft|hard) lockup)\b|\bNODE_FAIL\b|\bcudaError[A-Z]|\b(?:CUDA|CU[A-Z]{2,6}|HIP[A-Z]*|NVML"
    r"|NVRTC)_(?:ERROR|STATUS)_(?!SUCCESS|NO_DEVICE)[A-Z]",
    re.ASCII,
)
# A program's report that another one ended, with the number of a signal or status other than 0.
_ENDED = re.compile(
    r"\b(?:exit(?:s|ed)?|exitcode|return(?:s|ed)?|ended|terminated|killed|signal|status|code"
    r"|value)\b[^\d\n]{0,24}\b(?:signal|status|code|value)\b\W{0,4}[1-9]\d{0,4}\b|\bexitcode\W{1,5}[1-9]|death signal"
    r"|\breturned [1-9]\d{0,2} exit status|\bnon-?zero (?:exit|status|return)|\*\*\* .{1,200} Error [1-9]\d{0,2}\s*$"
    r"|\b(?:by|on|with) signal\W{0,2}[1-9A-Z]|\bcu[A-Za-z]{2,40} returned [1-9]|\brc=[1-9]|\bexit [1-9]\d{0,2}\s*$",
    re.ASCII | re.IGNORECASE,
)
# Words of failure that a run may survive.
_MAY_BE_HARMLESS = re.compile(
    r"\b(?:fail(?:ed|ure(?! (?:detection|handl|rate|toler))|s)?|cannot|can(?:'|no)t|could(?:n't| not)|unable to"
    r"|timed out|abort(?:ed|ing)?|panic(?:ked)?|crash(?:ed|es|ing)|died|hung|stall(?:ed|s)|stuck|killed|terminated"
    r"|evicted|preempted|revoked|rejected|refused|denied|forbidden|cancell?ed|interrupted|disconnected|expired"
    r"|exceed(?:ed|s)|exhausted|shut down|giving up|gave up|blocked for|lost (?:co\w+|peer|node|worker|member\w+)"
    r"|(?:is|are) missing|missing ranks?|went away|broken|unbound variable"
    r"|(?:requires?|needs?|must) (?:a )?(?:reset|reboot|restart)|(?:reset|reboot) required|call trace|tainted|emask"
    r"|containment|is not equal to|(?:Crash|Image)\w*BackOff|ErrImagePull|Create\w+Error|no socket interface"
    r"|(?:is|was|has been|been) (?:probably )?(?:lost|locked|dead|down|gone)"
    r"|(?:link|went|controller|service|server|node|nodes|host|them) down|compromised|bad (?:device|block|sector|page)"
    r"|diverged|exploded|not divisible|unresponsive|not alive|(?:heartbeat|device|carrier) lost|\d UE|back-off \w+ing"
    r"|interruption|unauthorized|restricted|is too old|unavailable"
    r"|no (?:CUDA|NVIDIA).{1,20}(?:available|detected|driver)|too many \w+|rate limit"
    r"|timeouts?(?=[,.!;]|\s*$| (?:while|waiting|after|occurred|detected|on|for|from|reached))"
    r"|(?:reset|closed|deleted) by|connection (?:to \S+ )?(?:closed|dropped)|fallen off|taking .{0,40}down"
    r"|low on resource|undefined (?:symbol|reference)|unresolved|unsupported|unrecogni[sz]ed|incompatible|inconsistent"
    r"|mismatch(?:ed)?|invalid|illegal|malformed|corrupt(?:ed|ion)?|uncorrectable|unrecoverable|unhealthy|unreachable"
    r"|abnormal(?:ly)?|unexpected(?:ly)?(?! key)|violation|desync|traceback|backtrace|fatal|BAD TERMINATION"
    r"|exception by|general protection|not enough|insufficient|quota|in use"
    r"|out of (?:memory|resource|range|space|bounds|disk)|no (?:module|space|route|such)"
    r"|not (?:found|responding|connected|ready|permitted)|does not exist|(?:file ?system|remounting .{0,40}) read-only"
    r"|read-only file system|resource busy|service not known|fault(?! (?:toler|inject|handl))|no rule|unknown reason"
    r"|thermal shutdown|(?:received|got|caught) (?:signal|SIG[A-Z]+)|sending signal \w+ to command"
    r"|SIG[A-Z]+ (?:received|caught)|(?:is|found|became|detected)(?: now)? (?:nan|inf)|(?:deadlock|hang)s? detected"
    r"|\w+(?:error|exception)(?=\s*$)|(?:nan|inf|non-?finite)\b.{0,60}\b(?:exit|stopp|halt|terminat)\w+"
    r"|errors?(?! (?:rate|count|correct|budget|toleran|handl|reporting|feedback|inject|checking|log|file|message|code 0"
    r"|to|\d*\.\d)|\.\w|: ?\d|[\w/.]*[=(]))\b|\bNCCL WARN ",
    re.ASCII | re.IGNORECASE,
)
# With one of these words a line reports a warning, a retry or a possibility, and not a failure.
_HEDGED = re.compile(
    r"\b(?:retry(?! (?:count|exceed))|retrying(?!.*giving up)|retries(?= \d)|fall\w* ?back|ignor\w+|skip\w*"
    r"|instead(?! of)|recovered|resum(?:ed|ing)|re-?connected|restored|corrected|re-?established|succeeded|enabled|CE"
    r"|(?:dropp|filter|remov|exclud|discard)(?:ed|ing) \d+|disabl\w+|deprecat\w+|optional\w*|may|might|if"
    r"|will (?:be|use|not|result|abort)|start\w* from|dlerror|installed|normally|successfully|allowed|git repository"
    r"|File exists|ioctl for device"
    r"|(?:max|mean|abs|rel|mse|loss|squared|absolute|relative|std|standard|training|rounding|numerical|not an) errors?)"
    r"\b|[,;] (?:so |now |then )?(?:download|build|creat|generat|proceed|continu|us|fall|default|start|assum|try)ing\b"
    r"|fail[ -]?over|(?<![#.\w])(?:0|no|none|zero|without) (?:\w+ )?(?:fail|err(?! \d)|un(?:healthy|correct|recover)"
    r"|invalid|time(?:out|d out)|lost)|: No device found|module verification|\b0 of \d|error-free|not enough SMs"
    r"|(?:records?|samples?|rows?) (?:dropp|skipp|filter|remov)ed|\(bug\)|^ *(?:[#+] |set -|if \[)|; .{0,40} is not "
    r"|^df: |\bOK\s*$| \.{3,} |^[ +]*\w+=|(?:fail|err|invalid|corrupt|lost|timeout)\w*(?: \w+)? ?[:= ] ?0\b"
    r"|\w ?[:=] ?(?:0(?:\.0+)?(?: of \d+)?|no(?:ne|t active)?|false|off|disabled|\[\])\s*$",
    re.ASCII | re.IGNORECASE,
)
# Messages further from the cause than those of the failed program, nearest first: torchrun's summary of a rank's end,
# errors of ranks that lost a peer, and reports that a started program failed or was ended.
_TELLS_LESS = (
    re.compile(r"E\d{4} |terminate called ", re.ASCII),
    re.compile(r".*(?:[Cc]onnection (?:was )?(?:closed|reset|refused)|[Bb]roken pipe|ncclRemoteError)", re.ASCII),
    re.compile(
        r"srun: error: |mpirun |(?:\w+\.)*(?:ChildFailedError|SignalException|CalledProcessError)\b"
        r"|ERROR:torch\.distributed|(?:\[[\d :,-]+\] )?\[ERROR\] \[launch\.py",
        re.ASCII,
    ),
)
# It may stand behind a progress bar, which has no line end, or behind a time.
_CUT_OFF = re.compile(
    r"(?:(?<![\w.'\"(-])[\w.-]+(?:\[\d+\])?: |(?<=\] )|^)error: +\*\*\* (?:JOB|STEP) [\w.+]+ (?:ON \S+ )?CANCELLED "
    r"AT \S+ DUE TO TIME LIMIT \*\*\*",
    re.ASCII,
)


# Every line about a failure or a time limit contains one of these.
_NEEDLES = (
    "rror|ERROR|xception|nterrupt|xit|EXIT|ail|FAIL|bort|ABORT|illed|KILL|erminat|TERMINAT|core dumped|SIG|ignal|oom|"
    "atal|FATAL|PANIC|panic|CRIT|BUG|SEVERE|rash|died|hung|talled|victed|revoked|ejected|efused|enied|orbidden|ancel|"
    "isconnected|xpired|xceed|xhausted| down|giving up|gave up|blocked|lost|reset by|allen off|low on|ndefined|"
    "nresolved|nsupported|nrecogni|ncompatible|nconsistent|ismatch|nvalid|llegal|alformed|orrupt|ncorrectable|"
    "nrecoverable|nhealthy|nreachable|bnormal|nexpected|iolation|esync|acktrace|raceback|protection|ut of |ot enough|"
    "nsufficient|oo many|quota|o module|o space|No such|ot found|not exist|ot responding|ot connected|ot permitted|"
    "roken|ead-only|urce busy|not known|fault|annot|an't|ould not|ouldn't|nable to|imed out|imeout|eturned|stopp|halt|"
    "level=|[E|[F|NeMo |E1|F1|HSA_STATUS|_STATUS_|Xid|MPI_|mpirun|NCCL WARN|Stale file|(): |smashing|overflow|Bad|"
    "issing|DataLoader worker|ssert|rc=|in use|StopIteration|StopAsync|pure virtual|double free|Hangup|Alarm clock|"
    "User defined|Virtual timer|dumped core|trap |stall|ockup|OCKUP|probably|ompromised|bad |iverged|oo Many|"
    "rate limit|is nan|is inf|DOWN| dead| gone|Lost |ANCEL|No route|went away|reempted|tuck|unbound|equires|equired|"
    "Call Trace|end trace|ainted|Emask|ontainment|not equal|BackOff|Oops|Down|NotFound|detected|too old|found NaN|"
    "NVIDIA driver|estricted|nauthorized|leted by|losed|GPUs are|No device|no socket|xploded|ivisible|nresponsive|"
    " alive| UE|ack-off|o rule|hermal"
)
FAILURES = tuple(map(str.encode, _NEEDLES.split("|")))
_ANY = re.compile("|".join(map(re.escape, _NEEDLES.split("|"))))


def number(text: str) -> float | None:
    """Read a number as frameworks print it, NaN and infinities included; None for any other text."""
    if _NUMBER.fullmatch(text):
        return float(text)
    match = _NOT_FINITE.fullmatch(text)
    return float(match[1]) if match else None


def failure(text: str) -> str | None:
    """Return the line if a program or Slurm reports a failure with it; None for any other line."""
    return None if _grade(text) is None else text.strip()


def remoteness(words: str) -> int:
    """Rank the words of a failure by their distance from the cause: 0 for those of the failed program."""
    grade = _grade(words) or 0
    return next((number for number, pattern in enumerate(_TELLS_LESS, start=1) if pattern.match(words)), grade)


def may_be_survived(remote: int) -> bool:
    """Whether a run may go on after words of this remoteness."""
    return remote in {_LOGGED, _WORDS}


def _grade(text: str) -> int | None:
    """Return the remoteness of the words of a failure without regard to who reports it; None for other text."""
    text = text[:_LONGEST]
    if not _ANY.search(text):
        return None
    if _KILLED.search(text) or _FAILURE.match(text):
        return 0
    if (level := _LEVEL.search(text)) and "NCCL WARN" not in text:
        return _LOGGED if level["grave"] else None
    if _ENDED.search(text):
        return _REPORTS
    return _WORDS if _MAY_BE_HARMLESS.search(text) and not _HEDGED.search(text) else None


def cut_off(text: str) -> str | None:
    """Return the line if Slurm reports with it that the job or step ended at its time limit; else None."""
    match = _CUT_OFF.search(text) if "TIME LIMIT" in text else None
    return match[0] if match else None
