// Package sched turns requests into steps.
package sched
