// A live reader of a region in Go, built together with the emitted assertions: follows the layout's protocol and counts reads
// that it had to believe and whose words do not fit together. Prints READS TORN BUSY DIFFERENT on standard error.
//
// Usage: reader FILE hami|identity|totals READS [ignore]. With `ignore` it believes whatever it sees: the planted fault.
//   hami      total and data of slot 0 belong to one change (hami-1.2, sequence number)
//   identity  who is in slot 1 (hooklab-1: generation, sequence number, state)
//   totals    the device's total is one word: whole MiB up to 2, whoever changes it (hooklab-1)

package main

import (
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const patience, most = 1000000, 1000 // looks in a row at a writer in the middle; reads until two values were seen

func number(text string) int {
	value := 0
	for _, digit := range text {
		value = value*10 + int(digit-'0')
	}
	return value
}

func pointer[T any](memory []byte, offset uintptr) *T { return (*T)(unsafe.Pointer(&memory[offset])) }

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		panic(err)
	}
	info, err := file.Stat()
	if err != nil {
		panic(err)
	}
	memory, err := syscall.Mmap(int(file.Fd()), 0, int(info.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	reads, follow := number(os.Args[3]), len(os.Args) < 5
	look := map[string]func([]byte, bool) (bool, bool, uint64){"hami": hami, "identity": identity, "totals": totals}[os.Args[2]]
	torn, busy, done := 0, 0, 0
	seen := map[uint64]bool{}
	for (done < reads || len(seen) < 2 && done < most*reads) && busy < patience {
		believed, fits, value := look(memory, follow)
		if !believed {
			busy++
			if busy%1000 == 0 {
				time.Sleep(100 * time.Microsecond)
			}
			continue
		}
		busy = 0
		done++
		if !fits {
			torn++
			if !follow {
				break
			}
		}
		if len(seen) < 1000 {
			seen[value] = true
		}
	}
	println(done, torn, busy, len(seen))
}

func hami(memory []byte, follow bool) (bool, bool, uint64) {
	slot := &pointer[HlHamiRegion](memory, 0).Procs[0]
	before := atomic.LoadUint64(&slot.Sequence)
	if follow && before%2 == 1 {
		return false, false, 0
	}
	total, data := atomic.LoadUint64(&slot.Used[0].Total), atomic.LoadUint64(&slot.Used[0].Data)
	if follow && atomic.LoadUint64(&slot.Sequence) != before {
		return false, false, 0
	}
	return true, total == data, total
}

func identity(memory []byte, follow bool) (bool, bool, uint64) {
	header := pointer[HlRegionHeader](memory, 0)
	slot := pointer[HlRegionSlot](memory, uintptr(header.SlotOffset)+unsafe.Sizeof(HlRegionSlot{}))
	if follow && atomic.LoadUint32(&slot.State) == 0 {
		return false, false, 0
	}
	generation, sequence := atomic.LoadUint64(&slot.Generation), atomic.LoadUint64(&slot.Sequence)
	pid, start, space := atomic.LoadUint32(&slot.Pid), atomic.LoadUint64(&slot.StartTime), atomic.LoadUint64(&slot.PidNamespace)
	if follow && (sequence%2 == 1 || atomic.LoadUint64(&slot.Sequence) != sequence ||
		atomic.LoadUint64(&slot.Generation) != generation || atomic.LoadUint32(&slot.State) == 0) {
		return false, false, 0
	}
	return true, pid != 0 && start != 0 && space != 0, uint64(pid)
}

func totals(memory []byte, follow bool) (bool, bool, uint64) {
	header := pointer[HlRegionHeader](memory, 0)
	used := atomic.LoadUint64(&pointer[HlRegionDevice](memory, uintptr(header.DeviceOffset)).Used)
	return true, used%(1<<20) == 0 && used <= 2<<20, used
}
