"""The shared ledger of a container seen from Python: map, read, check, repair.

Reading never changes the file and needs no native part; `Region.reap` goes through the C implementation, because only
it can hold the region's lock.
"""

from lab.region._file import Process, Region, RegionError
from lab.region._hami import HamiRegion, is_hami
from lab.region._suspend import Member, members, resume_all, suspend_all, wait_status_all
from lab.region._usage import read_usage

__all__ = [
    "HamiRegion",
    "Member",
    "Process",
    "Region",
    "RegionError",
    "is_hami",
    "members",
    "read_usage",
    "resume_all",
    "suspend_all",
    "wait_status_all",
]
