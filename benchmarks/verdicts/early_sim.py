import sys, collections
import numpy as np
from concurrent.futures import ProcessPoolExecutor
from benchmarks.verdicts.scenarios import SCENARIOS, Noise, noise
from pytest_llmbench.judging.interval.early import at_a_look, looks
D=(0.005,0.01,0.02,0.05)
def cell(args):
    i,n,cv,phi,R,seed=args
    sc=SCENARIOS[i]; rng=np.random.default_rng([seed,i,n,int(cv*1e5),int(phi*100)])
    k=Noise(cv=cv,phi=phi); runs=sc.make(rng,noise(rng,sc,k,R,n),k)
    wrong=collections.Counter(); steps=collections.defaultdict(list)
    for row,truth in zip(runs.seconds.tolist(),runs.truth.tolist()):
        seen=[(m,at_a_look(row[:m],plan=n,skip=5)) for m in looks(n,5)]
        for d in D:
            for sign in (-1,1):
                theta=truth*(1+sign*d)
                for m,s in seen:
                    v=s.decide(theta)
                    if v in("fast_enough","too_slow"): break
                if v==("fast_enough" if sign<0 else "too_slow"): wrong[sign*d]+=1
                steps[d].append(m)
    return sc.name,n,cv,phi,{k:v/R for k,v in wrong.items()},{d:float(np.median(steps[d])) for d in D}
if __name__=="__main__":
    R=int(sys.argv[1]); n=int(sys.argv[2])
    jobs=[(i,n,cv,phi,R,1) for i in range(len(SCENARIOS)-2) for cv in (.0005,.005,.02,.06) for phi in (0,.5,.9)]
    by=collections.defaultdict(list)
    with ProcessPoolExecutor(2) as ex:
        for r in ex.map(cell,jobs,chunksize=4): by[r[0]].append(r)
    for name,rs in by.items():
        worst=max(rs,key=lambda r:max(r[4].values(),default=0))
        med=np.median([r[5][.02] for r in rs if r[2]<.01])
        print(f"{name:24s} worst {100*max(worst[4].values(),default=0):6.2f}% (cv {worst[2]} phi {worst[3]} d {max(worst[4],key=worst[4].get) if worst[4] else ''}) median steps (cv<=.5%, d=2%) {med:.0f}")
