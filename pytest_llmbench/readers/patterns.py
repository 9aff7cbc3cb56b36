"""Patterns of the messages of programs that fail, common to all frameworks' logs."""

import re
from itertools import groupby
from operator import itemgetter

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
    r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|ExceptionGroup)(?:\(\w+\))?(?::?\s*$|:\s)"
    r"|(?:\w+\.)+(?:Error|Exception): "
    r"|(?:[a-z_]\w*\.)*(?:exc|errors?|\w*exceptions?)\.[A-Z]\w*(?:\(\w+\))?(?::?\s*$|:\s)"
    r"|(?:[a-z_]\w*\.)+[A-Z]?\w{0,30}(?:Bad|Broken|Expired|Fail|Timeout|Abort|Invalid|Unsupported|Killed|Missing"
    r"|NotFound)"
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
    r"(?:Segmentation fault|Bus error|Illegal instruction|Floating point exception|[Kk]illed|Aborted|Terminated"
    r"|Hangup"
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
    r"|value)\b[^\d\n]{0,24}\b(?:signal|status|code|value)\b\W{0,9}[1-9]\d{0,4}\b|\bexitcode\W{1,5}[1-9]|death signal"
    r"|\breturned [1-9]\d{0,2} exit status|\bnon-?zero (?:exit|status|return)|\*\*\* .{1,200} Error [1-9]\d{0,2}\s*$"
    r"|\b(?:by|on|with) signal\W{0,2}[1-9A-Z]|\bcu[A-Za-z]{2,40} returned [1-9]"
    r"|\brc=[1-9]|\bexit(?:ed|s) with -?[1-9]|\bexit [1-9]\d{0,2}\s*$",
    re.ASCII | re.IGNORECASE,
)
# Words of failure that a run may survive.
_MAY_BE_HARMLESS = re.compile(
    r"\b(?:fail(?:ed|ure(?! (?:detection|handl|rate|toler))|s)?|cannot|can(?:'|no)t|could(?:n't| not)|unable to"
    r"|timed out|abort(?:ed|ing)?|panic(?:ked)?|crash(?:ed|es|ing)|died|hung|stall(?:ed|s)|stuck|killed(?! 0)"
    r"|terminated|evicted|preempted|revoked|rejected|refused|denied|forbidden|cancell?ed|interrupted|disconnected"
    r"|expired|exceed(?:ed|s)|exhausted|shut down|giving up|gave up|blocked for|lost(?! \d)|dead(?! \w)|(?:is"
    r"|are) missing|missing (?:ranks?|key\(s)|went away|broken|unbound variable|duplicate \w+ detected|halted|starved"
    r"|ran out of|\w*NotReady|\w*(?:Deadline|Limit)Exceeded|(?:file|is|was|message) truncated(?! to)|(?:requires?"
    r"|needs?|must) (?:a )?(?:reset|reboot|restart)|(?:reset|reboot) required|call trace|tainted|emask|containment"
    r"|is not equal to|(?:Crash|Image)\w*BackOff|backoff limit|ErrImagePull|Create\w+Error|no socket interface"
    r"|stale (?:\w+ )?file handle|not running|list too long|(?:is|was|has been|been) (?:probably )?(?:locked|down"
    r"|gone)|(?:link|port|went|to|controller|service|server|nodes?|host|them) down|compromised|bad (?:device|block"
    r"|sector|page|file|address)|diverged|exploded|not divisible|unresponsive|not alive|missed|\d UE|unsuccessful\w*"
    r"|back-off \w+ing|(?:(?:did|does)(?: not|n't)|ha(?:s|ve)(?: not|n't)(?! \w+ yet)|never) (?:\w+ly )?(?:respond"
    r"|repl|complet|finish|start|arriv|join|reach|converg|return|answer|check|call)\w*|no (?:progress|response|reply"
    r"|answer|heartbeat)s?|(?:terminating|killing) (?:the |this |all )?(?:job|run|training|process|rank)|interruption"
    r"|unauthorized|restricted|is too old|unavailable|only \d+ of \d+|no devices? (?:were |was )?found"
    r"|(?-i:[A-Z_]+_FAILED)|no (?:CUDA|NVIDIA).{1,20}(?:available|detected|driver)|too (?:many|few|large|small|big"
    r"|short)|rate limit|timeouts?(?=[,.!;]|\s*$| (?:while|waiting|after|occurred|detected|on|for|from|reached))"
    r"|(?:reset|closed|deleted) by|(?:connection|socket) (?:to \S+ )?(?:closed|dropped)|fallen off|taking .{0,40}down"
    r"|low on resource|undefined (?:symbol|reference)|unresolved|unsupported|unrecogni[sz]ed|incompatible|inconsistent"
    r"|mismatch(?:ed)?|invalid|illegal|malformed|corrupt(?:ed|ion)?|uncorrectable|unrecoverable|unhealthy|unreachable"
    r"|abnormal(?:ly)?|improper(?:ly)?|premature(?:ly)?|exited early|(?:disk|device) full|unexpected(?:ly)?(?! key)"
    r"|violation|desync|traceback|backtrace|fatal|BAD TERMINATION|exception by|general protection|not enough"
    r"|insufficient|quota|(?:already|is|are|still|currently) in use|out[ _]of[ _](?:memory|resource|range|space|bounds"
    r"|disk)|no (?:module|space|route|such)|not (?:found|responding|connected|ready|permitted)|does not exist"
    r"|(?:file ?system|remounting .{0,40}) read-only|read-only file system|(?:resource|file) busy|service not known"
    r"|fault(?! (?:toler|inject|handl))|no rule|unknown reason|thermal shutdown|(?:received|got|caught) (?:signal"
    r"|SIG[A-Z]+)|signal \w+ (?:received|caught)|sending signal \w+ to command|SIG[A-Z]+ (?:received|caught)|(?:is"
    r"|found|became|detected)(?: now)? (?:nan|inf)|(?:deadlock|hang)s? detected|\w+(?:error|exception)(?=\s*$)|(?:nan"
    r"|inf|non-?finite)\b.{0,60}\b(?:exit|stopp|halt|terminat)\w+|errors?(?! (?:rate|count|correct|budget|toleran"
    r"|handl|reporting|feedback|inject|checking|log|file|message|code 0|to|\d*\.\d)|\.\w|: ?\d|[\w/.]*[=(]))\b"
    r"|\bNCCL WARN ",
    re.ASCII | re.IGNORECASE,
)
# With one of these words a line reports a warning, a retry or a possibility, and not a failure.
_HEDGED = re.compile(
    r"\b(?:retry(?! (?:count|exceed))|retrying(?!.*giving up)|retries(?= \d)|fall\w* ?back|ignor\w+|skip\w*"
    r"|instead(?! of)|recovered|resum(?:ed|ing)|re-?connected|restored|corrected|re-?established|succeeded|enabled|CE"
    r"|(?:dropp|filter|remov|exclud|discard)(?:ed|ing) \d+|disabl\w+|deprecat\w+|optional\w*|will (?:be|use|not|result"
    r"|abort)|start\w* from|dlerror|normally|successfully|allowed|be inferred|consider|(?:cannot|failed to) remove"
    r"|backlog|locally(?=\s*$)|(?:(?:unable|failed) to|cannot|could not) import(?! name)|replaced|git repository|ACPI"
    r"|NOHZ|usb|i2c|journald|ipmi|bashrc|compiled without|chronyd|postfix|X11|last login|File exists|ioctl for device"
    r"|(?:max|mean|abs|rel|mse|loss|squared|absolute|relative|std|standard|training|rounding|numerical"
    r"|not an) errors?)\b|[.,;] (?:so |now |then )?(?:sett|switch|download|build|creat|generat|proceed|continu|us|fall"
    r"|default|start|assum|try)ing\b(?! down)|fail[ -]?over|(?<![#.\w])(?:0|no|none|zero|without) (?:\w+ )?(?:fail"
    r"|err(?! \d)|un(?:healthy|correct|recover)|invalid|time(?:out|d out)|lost)|: No device found|module verification"
    r"|\b0 of \d|error-free|not enough SMs|(?:records?|samples?|rows?) (?:dropp|skipp|filter|remov)ed|\(bug\)"
    r"|^ *(?:[#+] |#SBATCH|set -|if \[)|; .{0,40} is not |\.triton/|\bOK\s*$| \.{3,}(?:\s|$)|^[ +]*\w+=(?!DRAIN|DOWN"
    r"|FAIL)|(?:fail|err|invalid|corrupt|lost|timeout)\w*(?: [a-z]\w*)? ?[:= ] ?0\b"
    r"|[a-z_)\]] ?[:=] ?(?:0(?:\.0+)?(?: of \d+| \w{1,3})?|no(?:ne|t active)?|false|off|disabled|\[\])\s*$",
    re.ASCII | re.IGNORECASE,
)
# Behind one of these words a failure is only supposed or announced; in front of them stands one that happened.
_SUPPOSED = re.compile(r"\b(?:may|might|if|when|unless|installed)\b", re.ASCII | re.IGNORECASE)
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
    "level=|[E|[F|NeMo |E1|F1|HSA_STATUS|_STATUS_|Xid|MPI_|mpirun|NCCL WARN|(): |smashing|overflow|Bad|issing|"
    "DataLoader worker|ssert|rc=|in use|StopIteration|StopAsync|pure virtual|double free|Hangup|Alarm clock|"
    "User defined|Virtual timer|dumped core|trap |stall|ockup|OCKUP|probably|ompromised|bad |iverged|oo Many|"
    "rate limit|is nan|is inf|DOWN| dead| gone|Lost |ANCEL|No route|went away|reempted|tuck|unbound|equires|equired|"
    "Call Trace|end trace|ainted|Emask|ontainment|not equal|BackOff|Oops|Down|NotFound|detected|too old|ound NaN|"
    "ound nan|ound inf|ecame |ackoff|NVIDIA driver|estricted|nauthorized|leted by|losed|GPUs are|No device|no socket|"
    "xploded|ivisible|nresponsive| alive| UE|ack-off|o rule|hermal|id not|idn't|oes not|oesn't|nsuccessful|o progress|"
    "o response|o reply|o answer|o heartbeat|oo few|oo large|oo small|oo big|oo short|nknown reason|tarved|ran out|"
    "NotReady|runcated|tale |not running|too long|missed|have not|has not|hasn't|haven't|never |OUT_OF|file busy|nly |"
    "remature|Stopp|illing|mproper| full"
)
FAILURES = tuple(map(str.encode, _NEEDLES.split("|")))
# Grouped by first character: Python tries one long alternation from its start at every place of a line.
_ANY = re.compile(
    "|".join(
        f"{re.escape(first)}(?:{'|'.join(re.escape(needle[1:]) for needle in needles)})"
        for first, needles in groupby(sorted(_NEEDLES.split("|")), key=itemgetter(0))
    )
)


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
    words = _MAY_BE_HARMLESS.search(text)
    return _WORDS if words and not _HEDGED.search(text) and not _SUPPOSED.search(text, 0, words.end() + 8) else None


def cut_off(text: str) -> str | None:
    """Return the line if Slurm reports with it that the job or step ended at its time limit; else None."""
    match = _CUT_OFF.search(text) if "TIME LIMIT" in text else None
    return match[0] if match else None
